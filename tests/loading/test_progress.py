"""Progress is shown where a person looks at stderr, and nowhere else."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from onepass.loading.progress import counted, shown_progress
from onepass.loading.tensor_reader import silent
from onepass.scorer import Scorer


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Within the test, not as a fixture: pytest puts its own stderr back between the two."""
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return stderr


class ZMQInteractiveShell:
    """What IPython calls the shell of a Jupyter kernel."""


def in_kernel(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    ipython = ModuleType("IPython")
    ipython.get_ipython = ZMQInteractiveShell  # type: ignore[attr-defined]
    stderr = io.StringIO()
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(sys, "stderr", stderr)
    return stderr


def test_a_pipe_is_shown_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with shown_progress() as show:
        assert show is silent


def test_a_terminal_is_shown_bars_with_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with shown_progress() as show:
        show("load", 3, 4)
        show("compile", 1, 6)
    shown = terminal.getvalue()
    assert "load" in shown
    assert "3 of 4" in shown
    assert "1 of 6" in shown


def test_a_notebook_is_shown_lines_that_are_gone_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = in_kernel(monkeypatch)
    with shown_progress() as show:
        show("load", 4, 4)
        show("rows", 5, 5)
    assert notebook.getvalue().startswith("\rload 4 of 4\rrows 5 of 5")
    assert notebook.getvalue().endswith("\r")


def test_loading_shows_its_progress_unless_another_is_given(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = in_kernel(monkeypatch)
    Scorer.load(str(checkpoint("llama3")), dtype="float32", progress=silent).close()
    assert notebook.getvalue() == ""
    Scorer.load(str(checkpoint("llama3")), dtype="float32").close()
    assert "\rload " in notebook.getvalue()


@pytest.mark.parametrize(
    ("stage", "done", "total", "words"),
    [
        ("load", 1, 1200, "1 of 1,200"),
        ("compile", 2, 6, "2 of 6"),
        ("rows", 7, 0, "7"),
        ("download", 1_500_000, 92_871_040, "1.5 MB of 92.9 MB"),
    ],
)
def test_what_is_done_is_counted(stage: str, done: int, total: int, words: str) -> None:
    assert counted(stage, done, total) == words
