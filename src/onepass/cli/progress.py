"""Progress bars on stderr for downloads and loading; nothing at all when nobody looks.

What is reported, and when, is up to whoever calls the `Progress` it yields.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onepass.loading.checkpoint import Progress


@contextmanager
def progress_bars(quiet: bool) -> Iterator["Progress"]:
    """One bar a stage, gone when the work is done; silent with `quiet` or when stderr is not a terminal."""
    from onepass.loading.checkpoint import silent

    if quiet or not sys.stderr.isatty():
        yield silent
        return

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage)
            bars.update(tasks[stage], description=_description(stage, done, total), completed=done, total=total or None)

        yield show


def _description(stage: str, done: int, total: int) -> str:
    """`program 3 of 6` while the third is compiled; other stages are their own name."""
    return f"program {min(done + 1, total)} of {total}" if stage == "compile" and total else stage
