"""The AMX attention against the definition on flat steps, with the real instructions or a shim for them."""

from typing import Any

import jax.numpy as jnp
import pytest

from attention.test_xla import STEPS
from kernels.cpu.amx import amx_library
from kernels.cpu.comparison import (
    check_equals_reference,
    check_other_sequences_change_nothing,
    small_random_sequences,
)
from onepass.kernels.cpu.attention import AmxAttention

pytestmark = pytest.mark.skipif(amx_library.problem() is not None, reason=str(amx_library.problem()))
DTYPES = pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])


@pytest.fixture(autouse=True, scope="module")
def _library() -> None:
    amx_library.load()


@DTYPES
@pytest.mark.parametrize("name", STEPS)
def test_amx_attention_equals_the_reference(name: str, dtype: Any) -> None:
    check_equals_reference(AmxAttention(), STEPS[name], dtype, group=3, head_dim=64)


@DTYPES
@pytest.mark.parametrize("seed", range(6))
def test_amx_attention_equals_the_reference_on_random_steps(seed: int, dtype: Any) -> None:
    check_equals_reference(AmxAttention(), small_random_sequences(seed), dtype, seed=seed, group=3, head_dim=64)


@DTYPES
@pytest.mark.parametrize(("kv_heads", "group", "head_dim"), [(1, 4, 128), (2, 1, 32)])
def test_amx_attention_takes_other_heads(kv_heads: int, group: int, head_dim: int, dtype: Any) -> None:
    sizes = {"kv_heads": kv_heads, "group": group, "head_dim": head_dim}
    check_equals_reference(AmxAttention(), small_random_sequences(9), dtype, **sizes)


@DTYPES
def test_other_sequences_change_no_bit_of_amx_attention(dtype: Any) -> None:
    check_other_sequences_change_nothing(AmxAttention(), dtype, group=3, head_dim=64)


def test_amx_attention_names_what_it_does_not_take() -> None:
    assert AmxAttention.problem(jnp.dtype(jnp.bfloat16), 80) == "takes heads of a multiple of 32 numbers, not 80"
    assert "float16" in str(AmxAttention.problem(jnp.dtype(jnp.float16), 64))
    assert AmxAttention.problem(jnp.dtype(jnp.float32), 96) is None
