"""A small compiled program, and a store with or without it."""

from pathlib import Path
from typing import Any

import jax
import pytest

from engine.programs.program_process import compiled, key_of
from onepass.engine.programs import store as program_store
from onepass.engine.programs.store import ProgramStore


@pytest.fixture(scope="module")
def program() -> jax.stages.Compiled:
    return compiled(8)


@pytest.fixture
def store(tmp_path: Path) -> ProgramStore:
    return ProgramStore(tmp_path / "programs")


@pytest.fixture
def saved(store: ProgramStore, program: jax.stages.Compiled) -> Path:
    """The one file of a store."""
    assert store.save(key_of(8), program)
    (file,) = store.folder.iterdir()
    return file


@pytest.fixture
def no_unpickling(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("something was unpickled")

    monkeypatch.setattr(program_store.pickle, "loads", refuse)
    monkeypatch.setattr(program_store.serialize_executable, "deserialize_and_load", refuse)
