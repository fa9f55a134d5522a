"""Programs are compiled by the real TPU compiler in a process of their own; its failures are errors, not deaths."""

import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from capacity.deployments import NARROW, deployed
from onepass.capacity.compiler import compile_programs, find_libtpu
from onepass.capacity.deployment import Deployment
from onepass.engine.programs.builder import Program
from onepass.errors import CompilerFailed, ConfigError
from onepass.models.config import ModelConfig

STEP, VOCABULARY = Program("step", 128), Program("vocabulary", 128, 64)
needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")


def small(target: str = "v6e:2x2", tp: int = 1, model: ModelConfig = NARROW) -> Deployment:
    """One rung, and a pool of a few pages."""
    return deployed(model, target, tp, max_batch_tokens=128, cache_bytes=0)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A compiler that dies when it is asked, with last words."""
    (tmp_path / "libtpu").mkdir()
    (tmp_path / "libtpu" / "__init__.py").write_text(
        "import os, sys\nsys.stderr.write('F0000 check failed: x > 0\\n')\nsys.stderr.flush()\nos._exit(7)\n"
    )
    return tmp_path


@needs_libtpu
def test_grouped_heads_that_devices_do_not_evenly_divide_compile_with_the_kernel() -> None:
    """Tensor parallelism on GQA models crashed such kernels ("dims do not evenly divide"): two KV heads and twelve of
    queries, as Qwen2.5-1.5B has them, on eight devices. The pool stays in place, and this process as it is."""
    before, loaded = dict(os.environ), "libtpu" in sys.modules
    grouped = replace(NARROW, num_heads=12, num_kv_heads=2, head_dim=128)
    deployment = small("v6e:2x4", 8, grouped)
    step, vocabulary = compile_programs(deployment, [STEP, VOCABULARY])
    assert step.does_not_fit is vocabulary.does_not_fit is None
    assert step.kernel_flops > 0, "the kernel is in it"
    assert step.cycles > 0
    assert vocabulary.cycles > 0
    parts = deployment.parts
    assert step.arguments >= parts.cost.weight_bytes + parts.pool_bytes
    assert step.outputs < 1 << 20, "the pool is not among them"
    assert parts.cost.weight_bytes < small(model=grouped).parts.cost.weight_bytes / 4, "it is a share that is compiled"
    assert dict(os.environ) == before
    assert ("libtpu" in sys.modules) == loaded, "this process has not loaded the compiler"


@needs_libtpu
def test_a_program_too_large_for_the_chip_is_told_in_the_compilers_words() -> None:
    wide = replace(NARROW, vocab_size=160_000_000)  # 80 GB of embeddings
    (compiled,) = compile_programs(small(model=wide), [VOCABULARY])
    assert compiled.does_not_fit is not None
    assert "hbm" in compiled.does_not_fit.lower()


@needs_libtpu
@pytest.mark.parametrize("name", ["v5e:1x1", "v5p:1x1x1", "v7x:1x1x1"])
def test_other_generations_are_compiled_for(name: str) -> None:
    (compiled,) = compile_programs(small(name), [VOCABULARY])
    assert compiled.does_not_fit is None
    assert compiled.arguments > 0


@needs_libtpu
def test_a_topology_that_the_compiler_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="libtpu knows no v6e:3x7"):
        list(compile_programs(small("v6e:3x7"), [STEP]))


def test_a_compiler_that_dies_is_an_error_with_its_last_words(broken: Path) -> None:
    says = r"failed for v6e:2x2 \(program step-128; exit status 7\).*check failed: x > 0"
    with pytest.raises(CompilerFailed, match=says):
        list(compile_programs(small(), [STEP], broken))


def test_without_the_compiler_one_is_told_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs the package libtpu, which is not in .*pip install 'onepass\[plan\]'"):
        find_libtpu(tmp_path)
