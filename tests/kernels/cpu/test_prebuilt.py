"""The libraries of a wheel: the newest that the CPU can run is loaded, and none that was built from something else."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from onepass.kernels.cpu import build, libraries, prebuilt
from onepass.kernels.cpu.instruction_sets import AMX_SET, AVX2, AVX512, INSTRUCTION_SETS, instruction_sets
from onepass.kernels.cpu.libraries import (
    AMX,
    ATTENTION,
    GENERAL,
    GGUF,
    PRODUCTS_BF16,
    PRODUCTS_F32,
    PRODUCTS_INT8_DOT_F32,
)
from onepass.kernels.cpu.prebuilt import CpuTarget, ffi_version, file_name

OLD = frozenset(AVX2) - {"avx2"}
MACHINE = CpuTarget("x86_64", frozenset(AVX512), "0.4")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As a wheel for x86-64 has it, with empty files."""
    for library in (*GENERAL, AMX):
        for row in instruction_sets(library, "x86_64"):
            (tmp_path / file_name(library, row, "0.4")).write_text("")
    return tmp_path


def found(folder: Path, target: CpuTarget = MACHINE, library: libraries.Library = ATTENTION) -> str | None:
    result = prebuilt.find(library, folder, target)
    return result and result.instruction_set


@pytest.mark.parametrize("row", INSTRUCTION_SETS, ids=lambda row: row.name)
def test_each_instruction_set_is_chosen_by_a_cpu_that_has_no_more(tmp_path: Path, row) -> None:
    """Those that only products of integers, or of bf16, gain by, for them alone."""
    target = CpuTarget(row.machine, frozenset((*row.features, "another")), "0.4")
    for library in (ATTENTION, PRODUCTS_BF16, PRODUCTS_INT8_DOT_F32):
        for other in instruction_sets(library, row.machine):
            (tmp_path / file_name(library, other, "0.4")).write_text("")
    assert (found(tmp_path, target, PRODUCTS_INT8_DOT_F32) == row.name) is (row.only_for != "bf16")
    assert (found(tmp_path, target, PRODUCTS_BF16) == row.name) is (row.only_for != "int8")
    assert (found(tmp_path, target) == row.name) is (row.only_for is None)
    assert found(tmp_path, target) in ("avx2", "avx512", "neon")


def test_a_cpu_of_less_gets_none_and_another_machine_gets_none(folder: Path) -> None:
    assert found(folder) == "avx512"
    assert found(folder, replace(MACHINE, features=OLD)) is None
    assert found(folder, replace(MACHINE, machine="aarch64")) is None
    assert found(folder, library=AMX) is None
    assert found(folder, replace(MACHINE, features=frozenset(AMX_SET.features)), AMX) == "amx"


def test_of_a_wheel_with_fewer_libraries_the_newest_that_is_there_is_chosen(folder: Path) -> None:
    (next(folder.glob("cpu_attention-avx512-*"))).unlink()
    assert found(folder) == "avx2"


def test_another_ffi_or_another_flag_is_another_library(folder: Path) -> None:
    assert found(folder, replace(MACHINE, ffi="0.5")) is None
    assert found(folder, replace(MACHINE, ffi="0.5"), GGUF) == "avx512", "it has nothing of XLA's"
    assert found(folder, library=replace(PRODUCTS_F32, flags=("-DOTHER",))) is None
    assert found(folder, library=replace(PRODUCTS_F32, operations=("qkv",))) is None


@pytest.mark.parametrize("changed", ["attention/cpu_attention.cc", "common/vectors.h"])
def test_a_change_of_source_makes_the_library_stale(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    sources = tmp_path_factory.mktemp("sources") / "csrc"
    shutil.copytree(libraries.SOURCES, sources)
    monkeypatch.setattr(libraries, "SOURCES", sources)
    assert found(folder) == "avx512", "the same text in another folder"
    (sources / changed).write_text((sources / changed).read_text() + "\n")
    assert found(folder) is None


def test_the_version_of_the_ffi_is_that_of_the_headers(tmp_path: Path) -> None:
    header = tmp_path / "xla" / "ffi" / "api" / "c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define XLA_FFI_API_MAJOR 3\n\n#define XLA_FFI_API_MINOR 14\n")
    assert ffi_version(str(tmp_path)) == "3.14"
    header.write_text("struct XLA_FFI_Api;")
    assert len(ffi_version(str(tmp_path))) == 64
    major, minor = ffi_version(build.ffi_headers()).split(".")
    assert major.isdigit()
    assert minor.isdigit()


@pytest.fixture
def no_compiler(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An x86-64 machine without a compiler, with a wheel's libraries."""
    monkeypatch.setattr(prebuilt, "FOLDER", folder)
    monkeypatch.setattr(build, "cpu_target", lambda: MACHINE)
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    return folder


def test_prebuilt_libraries_need_no_compiler(no_compiler: Path) -> None:
    assert build.cpu_problem() is None
    assert build.shared_object(ATTENTION) == next(no_compiler.glob("cpu_attention-avx512-*"))
    assert build.describe_code((ATTENTION, PRODUCTS_F32)) == "prebuilt for avx512"


def test_a_library_that_is_not_prebuilt_is_built_or_told(
    no_compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in no_compiler.glob("cpu_attention-*"):
        path.unlink()
    assert "another FFI than jaxlib's 0.4" in str(build.cpu_problem())
    assert "no C++ compiler" in build.describe_code((ATTENTION,))
    with pytest.raises(build.NotBuilt, match="cpu_attention is not prebuilt"):
        build.shared_object(ATTENTION)
    compiler = tmp_path / "compiler"
    compiler.write_text("""#!/bin/sh\n[ "$1" = --version ] && exit; while [ "$1" != -o ]; do shift; done; : > "$2"\n""")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert build.cpu_problem() is None
    assert build.describe_code((ATTENTION, PRODUCTS_F32)) == f"built at first use by {compiler}"
    assert build.shared_object(ATTENTION).is_relative_to(tmp_path / "cache")
    assert build.describe_code((ATTENTION, PRODUCTS_F32)) == f"built here by {compiler}"


def test_a_checkout_has_no_prebuilt_libraries() -> None:
    assert not prebuilt.FOLDER.exists()
    assert "has no prebuilt libraries" in prebuilt.problem(prebuilt.FOLDER, MACHINE)
