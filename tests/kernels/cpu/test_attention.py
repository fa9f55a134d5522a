"""The general C++ attention against the definition on flat steps, with every vector width of lanes; and its writes."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.steps import Sequence, case
from attention.test_xla import STEPS
from kernels.cpu.comparison import (
    TOKENS,
    attended,
    check_equals_reference,
    check_other_sequences_change_nothing,
    small_random_sequences,
)
from onepass.kernels.cpu import build
from onepass.kernels.cpu.attention import CpuAttention

pytestmark = pytest.mark.skipif(build.cpu_problem() is not None, reason=str(build.cpu_problem()))
DTYPES = pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])


@pytest.fixture(autouse=True, scope="module")
def _library() -> None:
    build.load_cpu()


@DTYPES
@pytest.mark.parametrize("name", STEPS)
def test_cpu_attention_equals_the_reference(name: str, dtype: Any) -> None:
    check_equals_reference(CpuAttention(group=3), STEPS[name], dtype, group=3, head_dim=64)


@DTYPES
@pytest.mark.parametrize("seed", range(8))
def test_cpu_attention_equals_the_reference_on_random_steps(seed: int, dtype: Any) -> None:
    check_equals_reference(CpuAttention(group=3), small_random_sequences(seed), dtype, seed=seed, group=3, head_dim=64)


@pytest.mark.parametrize(("group", "head_dim"), [(1, 40), (2, 32), (5, 24), (7, 16), (9, 8), (12, 128)])
def test_cpu_attention_takes_every_group_and_head_dim(group: int, head_dim: int) -> None:
    assert CpuAttention.problem(jnp.dtype(jnp.float32), head_dim) is None
    for seed in range(2):
        check_equals_reference(
            CpuAttention(group), small_random_sequences(seed), jnp.float32, seed=seed, group=group, head_dim=head_dim
        )


def test_cpu_attention_names_numbers_that_it_does_not_take() -> None:
    assert CpuAttention.problem(jnp.dtype(jnp.float16), 64) == "takes float32 and bfloat16, not float16"


@DTYPES
def test_other_sequences_change_no_bit_of_cpu_attention(dtype: Any) -> None:
    check_other_sequences_change_nothing(CpuAttention(group=3), dtype, group=3, head_dim=64)


def test_cpu_attention_reads_no_key_that_was_never_written() -> None:
    """What is in no sequence's pages, or after their last key, may be anything: NaN changes nothing."""
    sequences = [Sequence(70, 10, ((5, ()),)), Sequence(0, 33, ((20, ()),))]
    step_case = case(sequences, TOKENS)
    expected = attended(CpuAttention(2), step_case)[0]
    table, pool = step_case.step.pages, step_case.keys.pool
    there = np.zeros(pool.k.shape[1:3], bool)
    for page, length in zip(np.asarray(table.page), np.asarray(table.length), strict=True):
        there[page, :length] = True
    unwritten = jax.tree.map(lambda a: jnp.where(there[None, :, :, None, None], a, jnp.nan), pool)
    result = attended(CpuAttention(2), replace(step_case, keys=replace(step_case.keys, pool=unwritten)))[0]
    np.testing.assert_array_equal(result, expected)


def test_the_pool_is_written_in_place() -> None:
    """Through a scan over layers that writes and reads it: temporaries do not grow with the pool."""
    attention = CpuAttention(2)
    step_case = case([Sequence(70, 30, ((5, ()),))], TOKENS, pages=400, layers=3)

    def layers(pool, q, k, v, step):
        prepared = attention.prepare(step.queries, step, step_case.shape)

        def layer(carry, at):
            q, pool = carry
            pool = attention.write(pool, at, k, v, step)
            keys = replace(step_case.keys, k=k, v=v, pool=pool, layer=at)
            return (q + attention.attend(q, keys, step.queries, step, step_case.shape, prepared), pool), None

        return jax.lax.scan(layer, (q, pool), jnp.arange(3))[0]

    keys = step_case.keys
    lowered = jax.jit(layers, donate_argnums=0).lower(keys.pool, step_case.q, keys.k, keys.v, step_case.step)
    memory = lowered.compile().memory_analysis()
    pool_bytes = 2 * keys.pool.k.nbytes
    assert memory.alias_size_in_bytes >= pool_bytes
    assert memory.temp_size_in_bytes < pool_bytes // 8
