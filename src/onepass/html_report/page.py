"""The frame of an HTML report: head with the style sheet, title, a summary sentence, the body; and its tables.

A report is one file that loads nothing: its Content-Security-Policy forbids scripts and every request. Charts are
`svg`; numbers as text are `figures`. What a report says is left to the package that writes it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Literal

POLICY = "default-src 'none'; style-src 'unsafe-inline'"

Verdict = Literal["", "good", "bad", "warn"]  # the colour of a summary


@dataclass(frozen=True)
class Cell:
    """A cell of a table that is text and not a number: left-aligned, and it wraps."""

    text: str


@dataclass(frozen=True)
class Row:
    """The cells of a row of a table. `kind` is a class of the style sheet: `void` and `failed` are shown in red."""

    cells: Sequence[str | Cell]
    kind: str = ""


@cache
def theme() -> str:
    """The colours as CSS custom properties, for the reports and for the server's page."""
    return (files("onepass.html_report") / "theme.css").read_text(encoding="utf-8")


@cache
def stylesheet() -> str:
    """Colours and layout of every report."""
    return theme() + (files("onepass.html_report") / "report.css").read_text(encoding="utf-8")


def report_page(title: str, summary: str, body: Iterable[str], *, verdict: Verdict = "", style: str = "") -> str:
    """A whole HTML document. `title` and `summary` are text and are escaped here; `body` is HTML. `style` is CSS that
    only this report needs."""
    kind = f"summary {verdict}".strip()
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}</title><style>{stylesheet()}{style}</style></head>"
        f'<body><h1>{escape(title)}</h1><p class="{kind}">{escape(summary)}</p>{"".join(body)}</body></html>\n'
    )


def table(headings: Sequence[str], rows: Iterable[Row]) -> str:
    """Each cell carries its heading, since a narrow window shows a row as a list of named values."""
    rows = list(rows)
    texts = {n for row in rows for n, cell in enumerate(row.cells) if isinstance(cell, Cell)}
    head = "".join(_heading(heading, n in texts) for n, heading in enumerate(headings))
    body = "".join(_row(headings, row) for row in rows)
    return f'<div class="scroll"><table class="listed"><tr>{head}</tr>{body}</table></div>'


def _heading(heading: str, is_text: bool) -> str:
    return f'<th class="text">{escape(heading)}</th>' if is_text else f"<th>{escape(heading)}</th>"


def _row(headings: Sequence[str], row: Row) -> str:
    cells = "".join(_cell(heading, cell) for heading, cell in zip(headings, row.cells, strict=True))
    return f'<tr class="{escape(row.kind)}">{cells}</tr>' if row.kind else f"<tr>{cells}</tr>"


def _cell(heading: str, cell: str | Cell) -> str:
    if isinstance(cell, Cell):
        return f'<td class="text" data-heading="{escape(heading)}">{escape(cell.text)}</td>'
    return f'<td data-heading="{escape(heading)}">{escape(cell)}</td>'
