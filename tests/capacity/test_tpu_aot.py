"""The ahead-of-time matrix: a part of it is compiled here, all of it by `make test-tpu-aot`."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmark_scripts import benchmark_script
from onepass.capacity.compiler import Compiled, compile_programs
from onepass.capacity.memory import as_compiled


@pytest.fixture(scope="module")
def aot() -> Iterator[Any]:
    with benchmark_script("tpu_aot") as module:
        yield module


@pytest.fixture(scope="module")
def kept(aot: Any) -> Any:
    return aot.Kept(aot.RESULTS)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
def test_a_whole_program_compiles_and_fits_the_chip(aot: Any) -> None:
    """Two KV heads on eight chips: crashed elsewhere."""
    placement = aot.Placement("qwen2.5-1.5b", "v6e:2x4")
    deployment = placement.deployment("extend")
    program = next(program for program in placement.programs if program.kind == "step")
    compiled = list(compile_programs(deployment, [program]))
    assert [one.does_not_fit for one in compiled] == [None]
    found = as_compiled(deployment, compiled)
    assert found.weights + found.pool < found.total < 1.5 * (found.weights + found.pool)
    assert found.fits


def test_modes_and_workloads_share_a_models_few_programs(aot: Any) -> None:
    placement = aot.Placement("qwen3-0.6b", "v6e:1x1")
    every = set(placement.deployment("packed-segment").parts.builder().programs())
    for mode in aot.MODES:
        few, many = (set(placement.rehearse(mode, workload).programs) for workload in ("contract", "many"))
        assert few | many <= every
    assert len(placement.programs) == len(set(placement.programs)) <= len(every)


def test_what_is_stored_fits_or_says_why_not(aot: Any, kept: Any) -> None:
    lines = [line for one in aot.placements(aot.MODELS, aot.TARGETS) if (line := aot.line_of(one, kept)) is not None]
    for line in lines:
        assert line.fits, f"{line.placement} should fit: {line.words}"


def test_what_was_compiled_is_found_again(aot: Any, tmp_path: Path) -> None:
    placement, other = aot.Placement("qwen3-0.6b", "v6e:1x1"), aot.Placement("qwen3-0.6b", "v6e:2x2")
    first = aot.Kept(tmp_path / "kept.json")
    assert aot.line_of(placement, first) is None
    compiled = [Compiled(program, seconds=2.0, temporaries=5) for program in placement.programs]
    for one in compiled:
        first.add(placement, one, "1.2.3")
    again = aot.Kept(tmp_path / "kept.json")
    assert again.all_of(placement, placement.programs) == compiled
    assert aot.line_of(placement, again).seconds == 2.0 * len(compiled)
    assert aot.line_of(other, again) is None
