"""A wheel brings the C++ kernels for every instruction set: installed without a compiler, it scores with them."""

import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from onepass.kernels.cpu.instruction_sets import AMX_SET, INSTRUCTION_SETS, cpu_features, instruction_sets
from onepass.kernels.cpu.libraries import AMX, AMX_GGUF, AMX_INT8, AMX_INT8_DOT, GENERAL
from release import wheels

pytestmark = wheels.needs_zig
MACHINE = platform.machine()
ROWS = [row for row in INSTRUCTION_SETS if row.machine == MACHINE and cpu_features().issuperset(row.features)]
NAMES = [row.name for row in ROWS if row.only_for is None]
BEST = NAMES[-1] if NAMES else ""
KERNEL_TESTS = (
    "kernels/cpu/test_line_ops.py::test_products_equal_xlas",
    "kernels/cpu/test_line_ops.py::test_products_of_int8_weights_equal_xlas",
    "kernels/cpu/test_attention.py::test_cpu_attention_equals_the_reference",
    "loading/gguf/test_weights.py",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not NAMES:
        pytest.skip(f"no instruction set of wheels runs on this CPU ({MACHINE})")
    return wheels.build(tmp_path_factory.mktemp("wheel"), MACHINE, BEST)


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    environment = wheels.install(wheel, tmp_path_factory.mktemp("installed") / "site")
    compilers = [shutil.which(name, path=environment["PATH"]) for name in ("c++", "g++", "clang++")]
    assert not any(compilers)
    return environment


@pytest.mark.extended
def test_a_wheel_holds_every_general_library_for_the_instruction_set(wheel: Path) -> None:
    assert wheel.name.endswith(f"-py3-none-manylinux_2_28_{MACHINE}.whl")
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
    assert "Root-Is-Purelib: false" in archive.read(metadata).decode()
    stems = {Path(name).name.rpartition("-")[0] for name in archive.namelist() if name.endswith(".so")}
    rows = [(library.file_stem, row.name) for library in GENERAL for row in instruction_sets(library, MACHINE)]
    assert stems == {f"{stem}-{name}" for stem, name in rows if name == BEST}


@pytest.mark.extended
def test_the_libraries_of_amx_are_built_on_any_machine(tmp_path: Path) -> None:
    """They need features of the compiler that no other library does, and no test machine is sure to have."""
    archive = zipfile.ZipFile(wheels.build(tmp_path, "x86_64", AMX_SET.name))
    stems = {Path(name).name.rpartition("-")[0] for name in archive.namelist() if name.endswith(".so")}
    assert stems == {f"{library.file_stem}-amx" for library in (AMX, AMX_GGUF, AMX_INT8, AMX_INT8_DOT)}


def onepass(environment: dict[str, str], *arguments: str) -> dict:
    command = [sys.executable, "-m", "onepass.cli.main", *arguments, "--json"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.extended
def test_without_a_compiler_the_wheel_scores_as_the_checkout(
    environment: dict[str, str], checkpoint: Callable[[str], Path]
) -> None:
    model = str(checkpoint("qwen3"))
    rows = {row["name"]: row for row in onepass(environment, "info", model)["backends"]}
    assert (rows["cpu"]["state"], rows["cpu"]["code"]) == ("used", f"prebuilt for {BEST}")
    request = ["score", model, "--query", "The fox", "--items", " jumps", " sleeps", "--labels", " yes", " no"]
    request += ["--dtype", "float32"]
    here, there = (onepass(each, *request)["scores"] for each in (dict(os.environ), environment))
    np.testing.assert_allclose(there, here, rtol=1e-5)


def check_kernels(name: str, environment: dict[str, str]) -> None:
    """The tests of the kernels, with the wheel's libraries on a CPU of this instruction set."""
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "release.one_instruction_set", "-p", "no:cacheprovider"]
    variables = {
        **environment,
        "ONEPASS_TEST_INSTRUCTION_SET": name,
        "PYTHONPATH": os.pathsep.join((environment["PYTHONPATH"], str(tests))),
    }
    command += ["-m", "not extended", *(str(tests / each) for each in KERNEL_TESTS)]
    ran = subprocess.run(command, cwd=tests.parent, env=variables, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert " skipped" not in ran.stdout


@pytest.mark.extended
def test_the_kernels_of_the_wheel_equal_the_reference(environment: dict[str, str]) -> None:
    check_kernels(BEST, environment)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES[:-1])
def test_the_kernels_of_every_older_instruction_set_equal_the_reference(name: str, tmp_path: Path) -> None:
    check_kernels(name, wheels.install(wheels.build(tmp_path, MACHINE, name), tmp_path / "site"))
