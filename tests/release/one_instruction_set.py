"""A pytest plugin: the tests of the kernels see a CPU that has one instruction set and nothing newer, and no compiler.

`pytest -p release.one_instruction_set`, with ONEPASS_TEST_INSTRUCTION_SET and with a wheel's package on PYTHONPATH.
"""

import os
from typing import Any

import pytest

from onepass.kernels.cpu import build, int8_dot
from onepass.kernels.cpu.instruction_sets import INSTRUCTION_SETS
from onepass.kernels.cpu.libraries import GENERAL

NAME = os.environ["ONEPASS_TEST_INSTRUCTION_SET"]


def pytest_configure(config: Any) -> None:
    (row,) = (row for row in INSTRUCTION_SETS if row.name == NAME)
    for module in (build, int8_dot):  # each looks for itself
        module.cpu_features = lambda: frozenset(row.features)  # type: ignore[assignment]
    build.find_compiler = lambda: None  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _of_the_wheel() -> None:
    """Every library is the wheel's, of the instruction set."""
    assert {getattr(build.find_prebuilt(library), "instruction_set", None) for library in GENERAL} == {NAME}
