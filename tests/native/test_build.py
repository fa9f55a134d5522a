"""The C++ is built once for a machine, and what keeps it from being built is said."""

import stat
from pathlib import Path

import pytest

from onepass.native import build

needs_amx = pytest.mark.skipif(build.problem() is not None, reason=str(build.problem()))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "onepass" / "native"


def compiler(folder: Path, body: str) -> Path:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@needs_amx
def test_what_is_built_is_kept_and_a_change_builds_anew(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that counts its calls: all but those for its version."""
    calls = tmp_path / "calls"
    body = (
        f'[ "$1" = --version ] && echo 1 && exit; echo x >> {calls}; while [ "$1" != -o ]; do shift; done; touch "$2"'
    )
    monkeypatch.setenv("CXX", str(compiler(tmp_path, body)))
    first = build._built("headers")
    assert (build._built("headers"), calls.read_text()) == (first, "x\n")
    assert list(cache.iterdir()) == [first]
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-O2"))
    assert build._built("headers") != first
    assert calls.read_text() == "x\nx\n"


@needs_amx
def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(compiler(tmp_path, '[ "$1" = --version ] || { echo no tiles here >&2; exit 1; }')))
    with pytest.raises(build.NotBuilt, match="no tiles here"):
        build._built("headers")
    assert list(cache.iterdir()) == []


@needs_amx
def test_a_cache_that_cannot_be_written_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(build.NotBuilt, match="could not be written"):
        build._built("headers")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build.platform, "system", lambda: "Darwin")
    assert "Darwin" in str(build.problem())
    monkeypatch.undo()
    monkeypatch.setattr(build.platform, "system", lambda: "Linux")
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(build, "cpu_flags", lambda: frozenset(build.INSTRUCTIONS) - {"amx_bf16"})
    assert build.problem() == "needs a CPU with amx_bf16"
    monkeypatch.setattr(build, "cpu_flags", lambda: frozenset(build.INSTRUCTIONS))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert "C++ compiler" in str(build.problem())


def test_the_package_carries_its_sources() -> None:
    wanted = {"attention.cc", "products.cc", "planes.h", "tiles.h", "threads.h"}
    assert {path.name for path in build.FOLDER.iterdir()} >= wanted
