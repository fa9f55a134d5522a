"""The ahead-of-time matrix: a part of it is compiled here, all of it by `make test-tpu-aot`, and the page shows it."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from onepass.capacity.chips import GIB
from onepass.capacity.compiler import compile_programs
from onepass.capacity.footprint import as_compiled

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def aot() -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("tpu_aot", ROOT / "benchmarks" / "tpu_aot.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tpu_aot"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kept(aot: Any) -> Any:
    return aot.Kept(aot.RESULTS)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
@pytest.mark.parametrize(
    ("model", "target", "mode", "workload"),
    [
        ("qwen2.5-1.5b", "v6e:2x4", "extend", "contract"),  # two KV heads on eight chips: crashed elsewhere
        ("qwen3-0.6b", "v6e:2x2", "packed-segment", "contract"),
        ("qwen3-0.6b", "v6e:1x1", "packed-dense", "small"),
    ],
)
def test_whole_programs_compile_and_fit_the_chip(aot: Any, model: str, target: str, mode: str, workload: str) -> None:
    cell = aot.Cell(model, target, mode, workload)
    deployment, rehearsed = cell.deployment, cell.rehearse()
    compiled = list(compile_programs(deployment.share, deployment.target.topology, rehearsed.programs))
    assert [one.does_not_fit for one in compiled] == [None] * len(compiled)
    found = as_compiled(deployment, compiled, rehearsed.context_bytes)
    assert found.weights < found.total < 4 * GIB


def test_the_matrix_is_whole(aot: Any) -> None:
    every = aot.cells(aot.MODELS, tuple(aot.TARGETS), tuple(aot.MODES), ("contract", "many", "small"))
    assert len(every) == len(set(every)) == 5 * 3 * (3 * 2 + 1)


def test_what_is_stored_fits_or_says_why_not(aot: Any, kept: Any) -> None:
    every = aot.cells(aot.MODELS, tuple(aot.TARGETS), tuple(aot.MODES), ("contract", "many", "small"))
    lines = [line for cell in every if (line := aot.line_of(cell, kept)) is not None]
    assert {("qwen3-0.6b", "v6e:1x1"), ("qwen2.5-1.5b", "v6e:2x4")} <= {(o.cell.model, o.cell.target) for o in lines}
    for line in lines:
        assert line.fits == (line.footprint.total <= 31.1 * GIB and not line.words)
        assert line.fits or line.cell.workload == "many", f"{line.cell} should fit"


def test_the_page_shows_what_was_compiled(aot: Any, kept: Any) -> None:
    page = aot.PAGE.read_text(encoding="utf-8")
    assert page == aot.with_tables(page, kept), "run benchmarks/tpu_aot.py --table"
    assert page.count("| v6e:1x1 |") > 5


def test_a_program_that_cells_share_is_compiled_once(aot: Any) -> None:
    """10,000 items in chunks run the program of 500 items, and one more for what is left over."""
    few, many = (set(aot.Cell("qwen3-0.6b", "v6e:1x1", "chunked", w).rehearse().programs) for w in ("contract", "many"))
    assert few < many
    assert len(many) == 2


def test_what_was_compiled_is_found_again(aot: Any, tmp_path: Path) -> None:
    from onepass.capacity.compiler import Compiled

    cell = aot.Cell("qwen3-0.6b", "v6e:1x1", "packed-dense", "small")
    (program,) = cell.rehearse().programs
    first = aot.Kept(tmp_path / "kept.json")
    assert first.all_of(cell) is None
    first.add(cell, Compiled(program, seconds=2.0, temporaries=5), "1.2.3")
    again = aot.Kept(tmp_path / "kept.json")
    assert again.all_of(cell) == [Compiled(program, seconds=2.0, temporaries=5)]
    assert aot.line_of(cell, again).seconds == 2.0
    assert again.all_of(aot.Cell("qwen3-0.6b", "v6e:2x2", "packed-dense", "small")) is None
