"""How tests compile is decided by where they are, and holds for the processes that they start, too."""

import os
from pathlib import Path

import jax
import pytest

from compiling import FOLDER, OPTIMISED, QUICK, compile_as, share_compilations

TESTS = Path(__file__).parent


def test_what_is_compiled_as_users_do_exists() -> None:
    assert all((TESTS / path).exists() for path in OPTIMISED)


@pytest.mark.parametrize(
    ("node", "quick"), [("engine/end_to_end/test_modes.py", True), ("parity/test_rerankers.py", False)]
)
def test_a_test_and_its_processes_compile_alike(node: str, quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, QUICK, "")
    compile_as(node, os.environ)
    assert (jax.config.values["jax_disable_most_optimizations"], os.environ[QUICK]) == (quick, str(int(quick)))


def test_a_run_has_one_folder_that_its_workers_and_processes_find() -> None:
    assert jax.config.jax_compilation_cache_dir == os.environ[FOLDER]
    environment = {FOLDER: "made by another"}
    share_compilations(environment)
    assert environment[FOLDER] == "made by another"
