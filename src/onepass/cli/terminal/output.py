"""How results reach stdout: one JSON document, or a table with room for the terminal's width.

What goes into them is each command's own.
"""

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_WITHOUT_TERMINAL = 120


def print_json(document: Any) -> None:
    """Exactly one document, on one line unless a person reads it. Escaped to ASCII, so that no locale can break it;
    NaN is not JSON and may not occur."""
    print(json.dumps(document, indent=2 if sys.stdout.isatty() else None, allow_nan=False))


def console() -> "Console":
    """A console that prints users' texts as they are: no markup, no emoji codes, no highlighting."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the process with status 1; that is for `main` to decide

    width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
    return Plain(file=sys.stdout, width=width, markup=False, emoji=False, highlight=False)


def in_bytes(size: int) -> str:
    """`98 MB`: powers of 1000, as disks are sold."""
    value, units = float(size), ["bytes", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.0f} {units[0]}" if value >= 10 or units[0] == "bytes" else f"{value:.1f} {units[0]}"


def in_millions(count: int) -> str:
    """`135 M`, `1.72 B`: parameters, as models are named."""
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.0f} M"
