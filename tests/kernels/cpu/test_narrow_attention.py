"""Attention with keys, values and queries of 16 bits, in half precision and as integers, against the definition, on the
steps of the general attention. Integers of 16 bits are compiled for any CPU here."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.steps import Sequence, case, real
from attention.test_xla import STEPS
from kernels.cpu.comparison import TOKENS, attended, check_other_sequences_change_nothing, small_random_sequences
from onepass.attention.reference import Reference
from onepass.kernels.cpu import build
from onepass.kernels.cpu.attention import CpuAttention, Narrow
from onepass.kernels.cpu.int8_dot import narrow_attention
from onepass.kernels.cpu.libraries import HALF_ATTENTION, SHORT_ATTENTION

pytestmark = pytest.mark.skipif(build.cpu_problem() is not None, reason=str(build.cpu_problem()))
TOLERANCE = {
    "half": 3e-3,
    "short": 1e-3,
}  # of the norm of the result, which is shorter than its values: they are random


@pytest.fixture(autouse=True, scope="module", params=["half", "short"])
def narrow(request: pytest.FixtureRequest) -> Narrow:
    kind: Narrow = request.param
    if kind == "half" and narrow_attention() != "half":
        pytest.skip("needs an ARM64 CPU with half precision arithmetic (asimdhp)")
    build.load_cpu()
    build.load(HALF_ATTENTION if kind == "half" else SHORT_ATTENTION)
    return kind


def check(narrow: Narrow, sequences: list[Sequence], group: int, head_dim: int, seed: int = 0, by: float = 1.0) -> None:
    step_case = case(sequences, TOKENS, dtype=jnp.float32, seed=seed, group=group, head_dim=head_dim)
    pool = replace(step_case.keys.pool, v=step_case.keys.pool.v * by)
    step_case = replace(step_case, keys=replace(step_case.keys, v=step_case.keys.v * by, pool=pool))
    expected = attended(Reference(), step_case)
    result = attended(CpuAttention(group, narrow=narrow), step_case)
    for got, wanted, at_readouts in zip(result[:2], expected[:2], (False, True), strict=True):
        assert np.isfinite(got).all(), "padding too"
        want, difference = real(step_case, wanted, at_readouts), real(step_case, got - wanted, at_readouts)
        assert np.linalg.norm(difference) <= TOLERANCE[narrow] * np.linalg.norm(want)
        assert difference.any() or not want.any(), "rounded"
    for got, wanted in zip(jax.tree.leaves(result[2]), jax.tree.leaves(expected[2]), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("name", STEPS)
def test_narrow_attention_equals_the_reference(narrow: Narrow, name: str) -> None:
    check(narrow, STEPS[name], group=3, head_dim=64)


@pytest.mark.parametrize("seed", range(8))
def test_narrow_attention_equals_the_reference_on_random_steps(narrow: Narrow, seed: int) -> None:
    check(narrow, small_random_sequences(seed), group=3, head_dim=64, seed=seed)


@pytest.mark.parametrize(("group", "head_dim"), [(1, 40), (2, 32), (5, 24), (7, 16), (9, 8), (12, 128), (4, 14)])
def test_narrow_attention_takes_every_group_and_head_dim(narrow: Narrow, group: int, head_dim: int) -> None:
    for seed in range(2):
        check(narrow, small_random_sequences(seed), group, head_dim, seed=seed)


@pytest.mark.parametrize("by", [1e-2, 4000.0])
def test_narrow_attention_takes_small_and_large_values(narrow: Narrow, by: float) -> None:
    check(narrow, small_random_sequences(0), group=3, head_dim=64, by=by)


def test_other_sequences_change_no_bit_of_narrow_attention(narrow: Narrow) -> None:
    check_other_sequences_change_nothing(CpuAttention(group=3, narrow=narrow), jnp.float32, group=3, head_dim=64)


def test_narrow_attention_of_a_network_in_16_bits_is_the_general_one(narrow: Narrow) -> None:
    step_case = case(small_random_sequences(1), TOKENS, dtype=jnp.bfloat16, group=3, head_dim=64)
    expected, result = (attended(CpuAttention(3, narrow=kind), step_case)[0] for kind in (None, narrow))
    np.testing.assert_array_equal(result, expected)


def test_narrow_attention_reads_no_key_that_was_never_written(narrow: Narrow) -> None:
    sequences = [Sequence(70, 10, ((5, ()),)), Sequence(0, 33, ((20, ()),))]
    step_case = case(sequences, TOKENS)
    attention = CpuAttention(2, narrow=narrow)
    expected = attended(attention, step_case)[0]
    table, pool = step_case.step.pages, step_case.keys.pool
    there = np.zeros(pool.k.shape[1:3], bool)
    for page, length in zip(np.asarray(table.page), np.asarray(table.length), strict=True):
        there[page, :length] = True
    unwritten = jax.tree.map(lambda a: jnp.where(there[None, :, :, None, None], a, jnp.nan), pool)
    result = attended(attention, replace(step_case, keys=replace(step_case.keys, pool=unwritten)))[0]
    np.testing.assert_array_equal(result, expected)


def test_narrow_attention_shows_a_value_beyond_its_range(narrow: Narrow) -> None:
    step_case = case([Sequence(0, 20, ((5, ()),))], TOKENS, dtype=jnp.float32)
    beyond = 2e6 if narrow == "half" else np.inf  # integers have a scale for every value
    keys = replace(step_case.keys, v=step_case.keys.v.at[0].set(beyond))
    result = attended(CpuAttention(2, narrow=narrow), replace(step_case, keys=keys))[0]
    assert not np.isfinite(result[:20]).all()


def test_only_cpus_with_its_arithmetic_have_narrow_attention() -> None:
    assert narrow_attention({"asimd", "asimdhp", "asimddp"}) == "half"
    assert narrow_attention({"asimd", "asimddp"}) is None
    vnni = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
    assert narrow_attention(vnni) == "short"
    assert narrow_attention(vnni - {"avx512_vnni"}) is None
