"""Numbers and settings as people read them: the same form in every table, chart and list of a report."""

from collections.abc import Mapping
from typing import Any

MOST_LISTED = 20
PLAIN = {"None": "not set", "True": "yes", "False": "no"}


def number(value: float | None) -> str:
    """Three significant digits, thousands whole."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def difference(value: float | None) -> str:
    return "–" if value is None else "0" if value == 0 else f"{value:.0e}"


def setting(value: Any) -> str:
    """A setting in words: `none`, `yes`, `a, b`, `repeats 3, warm-up 2`."""
    if value is None or isinstance(value, bool):
        return PLAIN[str(value)]
    if isinstance(value, Mapping):
        return ", ".join(f"{words(name)} {setting(inner)}" for name, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        listed = ", ".join(setting(inner) for inner in value[:MOST_LISTED]) or "none"
        return listed if len(value) <= MOST_LISTED else f"{listed}, … ({len(value):,} in all)"
    if isinstance(value, str):
        return PLAIN.get(value, value)  # peers in processes of their own tell some settings as text
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)


def words(name: str) -> str:
    """`warm_up` → `warm up`."""
    return name.replace("_", " ")
