"""Rows of plain values as a pandas DataFrame, or as the HTML table that a notebook shows."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onepass.errors import ConfigError

if TYPE_CHECKING:
    import pandas

MAX_HTML_ROWS = 200
SHADE = "rgba(46, 125, 50, {:.2f})"  # legible on light and dark pages

Row = Mapping[str, Any]  # a cell by the name of its column


def data_frame(rows: Sequence[Row]) -> "pandas.DataFrame":
    try:
        import pandas
    except ModuleNotFoundError as missing:
        raise ConfigError("to_pandas needs the package pandas: pip install pandas") from missing
    return pandas.DataFrame(rows)


def html_table(caption: str, rows: Sequence[Row], shaded: Sequence[Sequence[str]] = ()) -> str:
    """`shaded[i]` are the columns of row i whose values lie between 0 and 1: a darker cell is a higher value, and the
    highest of the row is bold."""
    shown = rows[:MAX_HTML_ROWS]
    names = list(dict.fromkeys(name for row in shown for name in row))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(_row(names, row, shaded[i] if shaded else ()) for i, row in enumerate(shown))
    rest = f"<p>and {len(rows) - MAX_HTML_ROWS:,} more</p>" if len(rows) > MAX_HTML_ROWS else ""
    return (
        f"<table><caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"{rest}"
    )


def _row(names: Sequence[str], row: Row, shaded: Sequence[str]) -> str:
    best = max(shaded, key=lambda name: row[name], default=None)
    return f"<tr>{''.join(_cell(row.get(name), name in shaded, name == best) for name in names)}</tr>"


def _cell(value: Any, shaded: bool, best: bool) -> str:
    if isinstance(value, str):
        text = value if len(value) <= 100 else value[:99] + "…"
        return f'<td style="text-align: left">{html.escape(text)}</td>'
    if not isinstance(value, float):
        return f"<td>{'' if value is None else value}</td>"
    styles = []
    if shaded:
        styles.append(f"background: {SHADE.format(0.6 * min(1.0, max(0.0, value)) if math.isfinite(value) else 0.0)}")
    if best:
        styles.append("font-weight: bold")
    return f'<td style="{"; ".join(styles)}">{value:.4f}</td>'
