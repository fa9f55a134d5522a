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
            bars.update(tasks[stage], completed=done, total=total or None)

        yield show
