"""The progress of a command: what `loading.progress` shows, unless the user asked for none."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onepass.loading.tensor_reader import Progress


@contextmanager
def progress_bars(quiet: bool) -> Iterator["Progress"]:
    """One bar a stage, gone when the work is done; silent with `quiet` or when stderr is not a terminal."""
    from onepass.loading.progress import shown_progress
    from onepass.loading.tensor_reader import silent

    if quiet:
        yield silent
        return
    with shown_progress() as show:
        yield show
