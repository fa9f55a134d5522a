"""Kernels that begin before the one ahead has ended: each waits for it before it reads what that may have written."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from onepass.kernels.hopper.epilogue import GemmInput
from onepass.kernels.hopper.gate_up import gate_up_product
from onepass.kernels.hopper.layer_ops import HopperLayerOps
from onepass.kernels.hopper.pool_write import KvPool, write_groups, write_pool
from onepass.kernels.hopper.qkv import QkvEpilogue, qkv_product
from onepass.kernels.hopper.residual import ResidualEpilogue, residual_product

ON_GPU = jax.default_backend() == "gpu"
LAYER, COUNT = jnp.int32(0), jnp.int32(384)


def bf16(*shape: int) -> jax.Array:
    return jnp.zeros(shape, jnp.bfloat16)


def gate_up(mlp: int) -> Callable[[], Any]:
    return lambda: gate_up_product(GemmInput(bf16(384, 128), COUNT), bf16(1, 2, mlp, 128), LAYER, 8)


def qkv() -> Any:
    ends = QkvEpilogue(jnp.zeros((384, 64)), jnp.zeros((384, 64)), None, None, None, 1e-6)
    return qkv_product(GemmInput(bf16(384, 128), COUNT), bf16(1, 1, 4, 128, 128), LAYER, ends, 8)


def residual() -> Any:
    ends = ResidualEpilogue(jnp.zeros((384, 512)), None, None)
    return residual_product(GemmInput(bf16(384, 128), COUNT), bf16(1, 512, 128), LAYER, ends, 8)


def pool_write() -> Any:
    slots, pages = jnp.zeros(384, jnp.int32), bf16(1, 2, 128, 1, 128)
    return write_pool(
        KvPool(pages, pages), LAYER, bf16(384, 1, 128), bf16(384, 1, 128), slots, write_groups(slots), 132
    )


@pytest.mark.parametrize(
    ("kernel", "waits"),
    [(gate_up(256), 2), (gate_up(384), 2), (qkv, 1), (residual, 2), (pool_write, 1)],
    ids=["gate_up", "gate_up in one round", "qkv", "residual", "pool_write"],
)
def test_all_warpgroups_wait_before_the_next_kernel_may_begin(kernel: Callable[[], Any], waits: int) -> None:
    """Together, or those that copy weights first and those that compute; Pallas's interpreter has no such order."""
    said = re.findall(r"griddepcontrol_(wait|launch_dependents)", str(jax.make_jaxpr(kernel)()))
    assert said.count("wait") >= waits
    assert said.count("launch_dependents") == 1
    assert said.index("wait") < said.index("launch_dependents")


def test_only_small_steps_keep_their_kernels_out_of_cuda_graphs() -> None:
    """Of a large one the host would take longer to launch them, and nothing is gained."""
    ops = HopperLayerOps(132)
    small, large = (ops.compiler_options(tokens).get("xla_gpu_enable_command_buffer", "all") for tokens in (384, 16384))
    assert "CUSTOM_CALL" not in small.split(",")
    assert small != "all"
    assert large == "all"


def written_between_kernels(text: str) -> list[str]:
    """What XLA computes between two kernels of the loop's body, in the order in which it runs."""
    target = 'custom_call_target="mosaic_gpu'
    (body,) = (body for body in text.split("\n}\n") if body.count(target) >= 2 and "ENTRY" not in body)
    lines = [line for line in body.splitlines() if " = " in line]
    kernels = [n for n, line in enumerate(lines) if target in line]
    return [line for line in lines[kernels[0] : kernels[-1]] if re.search(r" (fusion|copy|call)\(", line)]


def test_a_counter_between_two_kernels_is_noticed() -> None:
    kernel = '  %k = bf16[8] custom-call(%at), custom_call_target="mosaic_gpu_v2"'
    count = "  %add = s32[] fusion(%at), kind=kLoop"
    before, after = "%body {\n", "\n}\nENTRY {\n  %x = s32[] copy(%y)\n}\n"
    assert written_between_kernels(before + "\n".join([kernel, kernel, count]) + after) == []
    assert written_between_kernels(before + "\n".join([kernel, count, kernel]) + after) == [count]


@pytest.mark.skipif(not ON_GPU, reason="reads what XLA made of a step on a Hopper GPU")
def test_nothing_writes_the_layer_s_number_between_two_kernels_of_a_layer() -> None:
    """Weights are copied before the kernel ahead has ended: it must not be one that writes which layer's."""
    from onepass.scorer import Scorer

    scorer = Scorer.load("random:qwen3-0.6b?layers=3", dtype="bfloat16", max_batch_tokens=384, cache_bytes=1 << 28)
    with scorer:
        scorer.score([5] * 40, [[7] * 9], label_token_ids=[1])
        (text,) = (text for program, text in scorer.engines[0].runner.texts().items() if program.kind == "step")
    assert written_between_kernels(text) == []
