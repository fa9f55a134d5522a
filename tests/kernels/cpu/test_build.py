"""The C++ is built once for a machine, what keeps it from being built is said, and programs with it can be kept."""

import pickle
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cpu.build_process import LIBRARY
from onepass.kernels.cpu import build, libraries
from onepass.kernels.cpu.build_lock import locked
from onepass.kernels.cpu.libraries import Library

needs_compiler = pytest.mark.skipif(build.cpu_problem() is not None, reason=str(build.cpu_problem()))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "onepass" / "native"


def compiler(folder: Path, body: str) -> Path:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_library_is_built_once_and_a_change_builds_anew(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that counts its calls, a source each and one to link: all but those for its version."""
    calls = tmp_path / "calls"
    body = (
        f'[ "$1" = --version ] && echo 1 && exit; echo x >> {calls}; while [ "$1" != -o ]; do shift; done; touch "$2"'
    )
    monkeypatch.setenv("CXX", str(compiler(tmp_path, body)))
    first = build.build(LIBRARY, "headers")
    assert (build.build(LIBRARY, "headers"), calls.read_text()) == (first, "x\n" * 3)
    assert list(cache.iterdir()) == [first]
    other_flags = Library(LIBRARY.name, LIBRARY.sources, LIBRARY.operations, ("-O2",))
    assert build.build(other_flags, "headers") != first
    assert calls.read_text() == "x\n" * 6


def test_building_is_announced_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes minutes on a small machine; a second start builds nothing and says nothing."""
    body = '[ "$1" = --version ] && echo 1 && exit; while [ "$1" != -o ]; do shift; done; touch "$2"'
    path = compiler(tmp_path, body)
    monkeypatch.setenv("CXX", str(path))
    monkeypatch.setattr(build, "cpu_problem", lambda: None)
    monkeypatch.setattr(build, "register", lambda library: None)
    for _ in range(2):
        build.load.cache_clear()
        build.load(LIBRARY)
    assert [record.getMessage() for record in caplog.records] == [
        f"building onepass's CPU kernels with {path}: once, for a minute or two"
    ]


def test_two_processes_that_start_at_once_build_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler counts its calls and goes on when both processes have come to their builds."""
    calls, started = tmp_path / "calls", tmp_path / "started"
    started.mkdir()
    body = (
        f'[ "$1" = --version ] && echo 1 && exit; echo x >> {calls}; '
        f"while [ $(ls {started} | wc -l) -lt 2 ]; do sleep 0.05; done; sleep 0.5; "
        'while [ "$1" != -o ]; do shift; done; touch "$2"'
    )
    monkeypatch.setenv("CXX", str(compiler(tmp_path, body)))
    script = Path(__file__).with_name("build_process.py")
    processes = [
        subprocess.Popen([sys.executable, script, started / name], stdout=subprocess.PIPE, text=True)
        for name in ("first", "second")
    ]
    paths = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert calls.read_text() == "x\n" * 3, "two sources and one to link"
    assert {Path(path) for path in paths} == set(cache.iterdir()), "and the lock file is gone"


def test_a_lock_that_is_not_released_in_time_does_not_prevent_building(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = '[ "$1" = --version ] && echo 1 && exit; while [ "$1" != -o ]; do shift; done; touch "$2"'
    path = compiler(tmp_path, body)
    monkeypatch.setenv("CXX", str(path))
    monkeypatch.setattr(build, "MAX_WAIT_SECONDS", 0.1)
    target = build.cached_path(LIBRARY, str(path))
    cache.mkdir(parents=True)
    with locked(target.with_suffix(".lock"), 0.0) as first:
        assert first
        with locked(target.with_suffix(".lock"), 0.1) as second:
            assert not second
        assert build.build(LIBRARY, "headers") == target
        assert target.exists()


def test_the_key_changes_with_source_and_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(compiler(tmp_path, "echo 1"))
    first = build.build_key(LIBRARY, path)
    monkeypatch.setattr(build, "cpu_features", lambda: frozenset({"some other CPU's"}))
    second = build.build_key(LIBRARY, path)
    for name in LIBRARY.sources:
        source = tmp_path / "csrc" / name
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text("int answer() { return 42; }")
    monkeypatch.setattr(libraries, "SOURCES", tmp_path / "csrc")
    third = build.build_key(LIBRARY, path)
    (tmp_path / "csrc" / "attention" / "cpu_panels.h").write_text("constexpr int kTile = 32;")
    assert len({first, second, third, build.build_key(LIBRARY, path)}) == 4


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(compiler(tmp_path, '[ "$1" = --version ] || { echo no vectors here >&2; exit 1; }')))
    with pytest.raises(build.NotBuilt, match="no vectors here"):
        build.build(LIBRARY, "headers")
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(compiler(tmp_path, "true")))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(build.NotBuilt, match="could not be written"):
        build.build(LIBRARY, "headers")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", str(compiler(tmp_path, "true")))
    monkeypatch.setattr(build.platform, "system", lambda: "Darwin")
    assert "Darwin" in str(build.amx_problem())
    assert "Darwin" in str(build.cpu_problem())
    monkeypatch.setattr(build.platform, "system", lambda: "Linux")
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    assert "aarch64" in str(build.amx_problem())
    assert build.cpu_problem() is None
    assert build.native_flags(libraries.ATTENTION) == ("-mcpu=native",)
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(build, "cpu_features", lambda: frozenset(build.AMX_FEATURES) - {"amx_bf16"})
    assert build.amx_problem() == "needs a CPU with amx_bf16"
    assert build.cpu_problem() is None
    monkeypatch.setattr(build, "cpu_features", lambda: frozenset(build.AMX_FEATURES))
    assert build.amx_problem() is None
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("CXX")
    assert "C++ compiler" in str(build.cpu_problem())
    assert "C++ compiler" in str(build.amx_problem())


def test_the_package_carries_its_sources() -> None:
    """And the table of libraries names every one of them."""
    names = {path.relative_to(libraries.SOURCES).as_posix() for path in libraries.SOURCES.rglob("*.cc")}
    assert names == {name for library in libraries.LIBRARIES for name in library.sources}
    headers = {path.relative_to(libraries.SOURCES).as_posix() for path in libraries.SOURCES.rglob("*.h")}
    assert headers >= {"attention/cpu_panels.h", "amx/planes.h", "amx/tiles.h", "common/threads.h"}


@needs_compiler
def test_a_program_with_the_kernels_in_it_can_be_kept_and_loaded(tmp_path: Path) -> None:
    """In another process that has registered the same targets."""
    kept = tmp_path / "program"
    script = Path(__file__).parent / "kept_program.py"
    results = [
        subprocess.run([sys.executable, script, what, kept], capture_output=True, check=True).stdout
        for what in ("save", "load")
    ]
    assert pickle.loads(results[0]) == pickle.loads(results[1])
