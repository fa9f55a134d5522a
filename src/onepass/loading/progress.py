"""Progress of downloads, loading, compiling and scoring on stderr: bars on a terminal, lines in a notebook.

Nothing is shown where nobody looks: a pipe, a file, a service. What is reported, and when, is up to whoever calls the
`Progress`.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from onepass.loading.tensor_reader import Progress, silent

if TYPE_CHECKING:
    from rich.progress import ProgressColumn, Task

LINE_SECONDS = 0.2  # between two lines of a notebook
NOTEBOOK_SHELL = "ZMQInteractiveShell"


def shown_progress() -> AbstractContextManager[Progress]:
    """A `Progress` for whoever looks at stderr, for as long as the block runs."""
    if in_notebook():
        return _lines()
    return _bars() if sys.stderr.isatty() else nullcontext(silent)


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel, whose stderr is shown below the cell and is no terminal."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and type(ipython.get_ipython()).__name__ == NOTEBOOK_SHELL


def counted(stage: str, done: int, total: int) -> str:
    """`12 of 30`, in bytes for a download; how many where the end is not known."""
    if stage == "download":
        from rich.filesize import decimal

        return f"{decimal(done)} of {decimal(total)}" if total else decimal(done)
    return f"{done:,} of {total:,}" if total else f"{done:,}"


@contextmanager
def _lines() -> Iterator[Progress]:
    """One line that is written over. rich's own display in notebooks needs ipywidgets, and without them only warns."""
    written, width = 0.0, 0

    def show(stage: str, done: int, total: int) -> None:
        nonlocal written, width
        now = time.monotonic()
        if now - written < LINE_SECONDS and done != total:
            return
        line = f"{stage} {counted(stage, done, total)}"
        sys.stderr.write("\r" + line.ljust(width))
        sys.stderr.flush()
        written, width = now, len(line)

    try:
        yield show
    finally:
        sys.stderr.write("\r" + " " * width + "\r")


@contextmanager
def _bars() -> Iterator[Progress]:
    """One bar a stage, gone when the block ends."""
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    with Bars(*_columns(), console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, count="")
            count = counted(stage, done, total)
            bars.update(tasks[stage], completed=done, total=total or None, count=count)

        yield show


def _columns() -> "tuple[ProgressColumn, ...]":
    from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """Of what is scored, where the rate says how long the rest takes."""

        def render(self, task: "Task") -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:,.1f} {task.description}/s" if speed and task.description in ("rows", "items") else "")

    left = TimeRemainingColumn(compact=True)
    return (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        Rate(),
        TimeElapsedColumn(),
        left,
    )
