"""Programs are compiled by the real TPU compiler in a process of their own; its failures are errors, not deaths."""

import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from capacity.deployments import BF16
from onepass.attention.base import RowShape
from onepass.capacity.compiler import compile_programs, find_libtpu
from onepass.capacity.share import Share
from onepass.engine.lowering import Program
from onepass.errors import CompilerFailed, ConfigError
from onepass.models.known import known_config
from onepass.parallel.topology import Topology

NARROW = replace(known_config("qwen3-0.6b"), num_layers=2, hidden_size=256, mlp_size=512, vocab_size=2048)
PROGRAM = Program("score", RowShape(1, 128, 0, 128, 32, 8, 4), "cascade")
V6E = Topology.parse("v6e:2x2")
needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A compiler that dies when it is asked, with last words."""
    (tmp_path / "libtpu").mkdir()
    (tmp_path / "libtpu" / "__init__.py").write_text(
        "import os, sys\nsys.stderr.write('F0000 check failed: x > 0\\n')\nsys.stderr.flush()\nos._exit(7)\n"
    )
    return tmp_path


@needs_libtpu
def test_a_program_is_compiled_for_one_device_and_for_four_that_share_it() -> None:
    before, loaded = dict(os.environ), "libtpu" in sys.modules
    sizes = {}
    for tp in (1, 4):
        share = Share(NARROW, BF16, tp)
        (compiled,) = compile_programs(share, V6E, [PROGRAM])
        weights = share.work.weight_bytes
        assert weights < compiled.arguments < 2 * weights + (1 << 20)
        assert compiled.does_not_fit is None
        assert compiled.cycles > 0
        assert compiled.kernel_flops > 0
        sizes[tp] = compiled.arguments
    assert sizes[4] < sizes[1] / 2
    assert dict(os.environ) == before
    assert ("libtpu" in sys.modules) == loaded, "this process has not loaded the compiler"


@needs_libtpu
def test_grouped_heads_that_devices_do_not_evenly_divide_compile_with_the_mask_kernel() -> None:
    """Tensor parallelism on GQA models crashed such kernels ("dims do not evenly divide"): two KV heads and twelve of
    queries, as Qwen2.5-1.5B has them, on eight devices."""
    share = Share(replace(NARROW, num_heads=12, num_kv_heads=2, head_dim=128), BF16, 8)
    (compiled,) = compile_programs(share, Topology.parse("v6e:2x4"), [PROGRAM])
    assert compiled.does_not_fit is None
    assert compiled.kernel_flops > 0, "the kernel is in it"


@needs_libtpu
def test_a_program_too_large_for_the_chip_is_told_in_the_compilers_words() -> None:
    wide = replace(NARROW, vocab_size=40_000_000)  # 20 GB of embeddings, and as much again for the head
    (compiled,) = compile_programs(Share(replace(wide, tied=False), BF16), V6E, [PROGRAM])
    assert compiled.does_not_fit is not None
    assert "hbm" in compiled.does_not_fit.lower()


@needs_libtpu
@pytest.mark.parametrize("name", ["v5e:1x1", "v5p:1x1x1", "v7x:1x1x1"])
def test_other_generations_are_compiled_for(name: str) -> None:
    (compiled,) = compile_programs(Share(NARROW, BF16), Topology.parse(name), [PROGRAM])
    assert compiled.does_not_fit is None
    assert compiled.kernel_flops > 0


@needs_libtpu
def test_a_topology_that_the_compiler_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="libtpu knows no v6e:3x7"):
        list(compile_programs(Share(NARROW, BF16), Topology.parse("v6e:3x7"), [PROGRAM]))


def test_a_compiler_that_dies_is_an_error_with_its_last_words(broken: Path) -> None:
    with pytest.raises(CompilerFailed, match=r"failed for v6e:2x2 \(score, .*exit status 7\).*check failed: x > 0"):
        list(compile_programs(Share(NARROW, BF16), V6E, [PROGRAM], broken))


def test_without_the_compiler_one_is_told_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs the package libtpu, which is not in .*pip install 'onepass\[plan\]'"):
        find_libtpu(tmp_path)
