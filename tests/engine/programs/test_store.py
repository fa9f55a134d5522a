"""Compiled programs survive the process: what is kept, under which key, and within which bytes.

Other processes are `test_store_processes`; damage and failing disks are `test_store_faults`; whose files are read is
`test_store_permissions`.
"""

import dataclasses
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache as jax_cache

from engine.programs.program_process import key_of, run
from onepass.engine.programs.compile_whole import compile_whole
from onepass.engine.programs.store import ProgramStore, describe_store


def test_program_from_jaxs_own_cache_is_compiled_anew(
    tmp_path: Path, store: ProgramStore, caplog: pytest.LogCaptureFixture
) -> None:
    """JAX's cache gives executables without their machine code, on a CPU: loaded again, they would fail."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path / "jax"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        jax_cache.reset_cache()
        for name, value in settings.items():
            jax.config.update(name, value)
        lowered = [jax.jit(lambda x: jnp.cos(x) @ x + 3).lower(jnp.ones((8, 8))) for _ in range(3)]
        lowered[0].compile()
        from_cache, whole = lowered[1].compile(), compile_whole(lowered[2])
        assert jax.config.jax_enable_compilation_cache, "as it was"
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        jax_cache.reset_cache()
    assert not store.save(key_of(8), from_cache), "the negative control"
    assert "no machine code" in caplog.text
    assert store.save(key_of(8), whole)


def test_loaded_program_is_not_saved_again(store: ProgramStore, saved: Path) -> None:
    loaded = store.load(key_of(8))
    assert loaded is not None
    assert not store.save(key_of(16), loaded)
    assert [entry.digest for entry in store.entries()] == [key_of(8).digest()]


def test_program_that_cannot_be_serialised_is_a_warning(store: ProgramStore, caplog: pytest.LogCaptureFixture) -> None:
    """XLA's CPU programs that sort cannot, once they have run."""
    sorting = compile_whole(jax.jit(jnp.sort).lower(jnp.ones((8, 8))))
    sorting(jnp.ones((8, 8)))
    assert not store.save(key_of(8), sorting)
    assert "cannot be serialised" in caplog.text
    assert not store.folder.exists()


def test_program_of_another_version_is_not_found(store: ProgramStore, saved: Path) -> None:
    toolchain = dataclasses.replace(key_of(8).toolchain, versions=("onepass 0.0.1",))
    assert store.load(dataclasses.replace(key_of(8), toolchain=toolchain)) is None
    assert store.load(key_of(8)) is not None


def test_evicted_program_is_gone(store: ProgramStore, saved: Path) -> None:
    store.evict(key_of(8))
    assert (saved.exists(), store.load(key_of(8))) == (False, None)
    store.evict(key_of(8))


def test_least_recently_used_programs_make_room(store: ProgramStore, program: jax.stages.Compiled) -> None:
    assert store.save(key_of(8), program)
    size = store.size
    bounded = ProgramStore(store.folder, max_bytes=int(3.5 * size))
    for age, tokens in enumerate((8, 16, 24)):
        assert bounded.save(key_of(tokens), program)
        file = store.folder / f"{key_of(tokens).digest()}.program"
        os.utime(file, (time.time() - 1000 + age, time.time() - 1000 + age))
    assert bounded.load(key_of(8)) is not None, "the oldest, and now the most recently used"
    assert bounded.save(key_of(32), program)
    assert {entry.digest for entry in bounded.entries()} == {key_of(tokens).digest() for tokens in (8, 24, 32)}
    assert bounded.size <= bounded.max_bytes


def test_program_beyond_the_bound_is_not_kept(tmp_path: Path, program: jax.stages.Compiled) -> None:
    store = ProgramStore(tmp_path / "programs", max_bytes=1000)
    assert not store.save(key_of(8), program)
    assert store.entries() == []


def test_other_files_in_the_folder_are_left_alone(store: ProgramStore, program: jax.stages.Compiled) -> None:
    store.folder.mkdir(mode=0o700)
    note = store.folder / "note.txt"
    note.write_text("x" * 100_000)
    os.utime(note, (0, 0))
    assert ProgramStore(store.folder, max_bytes=90_000).save(key_of(8), program)
    assert note.exists()


def test_saving_again_replaces(store: ProgramStore, saved: Path, program: jax.stages.Compiled) -> None:
    assert store.save(key_of(8), program)
    assert list(store.folder.iterdir()) == [saved]
    loaded = store.load(key_of(8))
    assert run(loaded, 8) == run(program, 8)


def test_store_describes_itself(store: ProgramStore, saved: Path) -> None:
    facts = describe_store(store.folder)
    assert facts == {"folder": str(store.folder), "programs": 1, "bytes": saved.stat().st_size, "problem": None}
    assert describe_store(store.folder / "none") == {
        "folder": str(store.folder / "none"), "programs": 0, "bytes": 0, "problem": None,
    }  # fmt: skip
    store.folder.chmod(0o777)
    assert "chmod 700" in describe_store(store.folder)["problem"]
