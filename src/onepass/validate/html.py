"""A validation as one HTML page: the verdict, what failed, a line per check and mode, and every case.

The frame and the style sheet are `html_report`'s; the document's other forms are `report`.
"""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from onepass.html_report.page import Cell, Row, report_page, table

HEADINGS = ("check", "case", "max", "mean", "allowed max", "allowed mean", "control", "verdict", "note")
NUMBERS = ("max_difference", "mean_difference", "tolerance_max", "tolerance_mean", "control_difference")


def validation_page(document: dict[str, Any]) -> str:
    """Of what `report.document` made."""
    title = f"Validation of {document['model']} · {document['dtype']}"
    return report_page(title, document["verdict"], _body(document), verdict="good" if document["passed"] else "bad")


def _body(document: dict[str, Any]) -> Iterator[str]:
    yield f"<p><code>{escape(document['command'])}</code><br>{escape(document['date'])}, "
    yield f"commit {escape(document['commit'] or 'unknown')}</p>"
    yield "<p>A control is the same check without isolation; it must differ by more than is allowed.</p>"
    outcomes: list[dict[str, Any]] = document["outcomes"]
    for heading, status in (("Failed", "failed"), ("Not run", "skipped"), ("Passed", "passed")):
        some = [outcome for outcome in outcomes if outcome["status"] == status]
        if some:
            yield f"<h2>{heading}: {len(some):,}</h2>{table(HEADINGS, map(_row, some))}"
    yield "<h2>How it was run</h2><ul>"
    for part in ("hardware", "versions", "settings"):
        for key, value in document[part].items():
            yield f"<li>{escape(key)}: <code>{escape(str(value))}</code></li>"
    yield "</ul>"


def _row(outcome: dict[str, Any]) -> Row:
    numbers = [_number(outcome[name]) for name in NUMBERS]
    cells: Sequence[str | Cell] = (
        outcome["name"], Cell(outcome["case"]), *numbers, outcome["status"], Cell(outcome["note"]),
    )  # fmt: skip
    return Row(cells, "failed" if outcome["status"] == "failed" else "")


def _number(value: float | None) -> str:
    return "" if value is None else "0" if value == 0 else f"{value:.1e}"
