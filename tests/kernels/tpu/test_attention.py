"""The TPU kernel equals the definition in Pallas's TPU interpreter, and visits the tiles that the ranges name."""

import functools
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from attention.steps import Case, Sequence, case, random_sequences, real
from attention.test_xla import STEPS
from kernels.tpu.interpreted import check, program
from onepass.attention.base import KvPool
from onepass.attention.block_table import block_table
from onepass.attention.mask import PADDING, Places, visible
from onepass.kernels.tpu.attention import TpuAttention
from onepass.kernels.tpu.walk import TILE

small_step = functools.partial(case, tokens=512, page=TILE, head_dim=64)
LONG = [Sequence(600, 100, ((20, (3,)), (7, ()))), Sequence(0, 40, ((30, ()),)), Sequence(130, 0, ((9, ()),) * 4)]


@pytest.mark.parametrize("name", STEPS)
def test_the_kernel_equals_the_reference(name: str) -> None:
    check(small_step(STEPS[name]))


@pytest.mark.parametrize("seed", range(3))
def test_the_kernel_equals_the_reference_on_random_steps(seed: int) -> None:
    check(small_step(random_sequences(np.random.default_rng(seed), 3, 80), seed=seed))


@pytest.mark.parametrize(("kv_heads", "group", "dtype"), [(2, 4, "bfloat16"), (1, 1, "float32")])
def test_heads_of_128_equal_the_reference(kv_heads: int, group: int, dtype: str) -> None:
    """One KV head lies otherwise in memory than several. A context of 600 has chunks without a mask."""
    made = case(LONG, 512, page=TILE, kv_heads=kv_heads, group=group, head_dim=128, dtype=jnp.dtype(dtype))
    check(made, 1e-5 if dtype == "float32" else 2e-2)


def test_what_was_never_written_and_padding_may_be_anything() -> None:
    made = small_step(LONG)
    table, count = made.step.pages, int(made.step.queries.count)
    page, length = np.asarray(table.page), np.asarray(table.length)
    filled = np.zeros(made.keys.pool.k.shape[1:3], bool)
    for number, keys in zip(page, length, strict=True):
        filled[number, :keys] = True
    spoilt = jnp.where(jnp.asarray(filled)[None, :, :, None, None], 0.0, jnp.nan)
    pool = KvPool(made.keys.pool.k + spoilt, made.keys.pool.v + spoilt)
    k, v, q = (a.at[count:].set(jnp.nan) for a in (made.keys.k, made.keys.v, made.q))
    expected = program(made.shape)(made.q, made.keys, made.step)
    got = program(made.shape)(q, replace(made.keys, k=k, v=v, pool=pool), made.step)
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_array_equal(got[1], expected[1])


def everything(asking: Places, key: Places) -> jnp.ndarray:
    """The rule switched off, for all keys that are there: whoever's they are, not only those before."""
    return (key.segment != PADDING) & (asking.segment == asking.segment)


def test_without_the_rule_the_kernel_is_wrong() -> None:
    """The negative control: ranges alone do not separate requests."""
    made = small_step(LONG)
    expected, leaking = (program(made.shape, *rule)(made.q, made.keys, made.step) for rule in ((), (everything,)))
    assert np.abs(real(made, leaking[0]) - real(made, expected[0])).max() > 0.1


def spoilt_parts(made: Case, k_or_pool: str, at: object) -> np.ndarray:
    """Parts of 128 tokens whose result is not a number when these values are not: those that visit them."""
    keys = made.keys
    if k_or_pool == "own":
        keys = replace(keys, v=keys.v.at[at].set(jnp.nan))
    else:
        keys = replace(keys, pool=KvPool(keys.pool.k, keys.pool.v.at[:, at].set(jnp.nan)))
    out = np.asarray(program(made.shape)(made.q, keys, made.step)[0])
    return np.isnan(out).any(axis=(1, 2, 3)).reshape(-1, TILE).any(axis=1)


def test_the_tiles_that_are_visited_are_those_of_the_ranges_and_no_others() -> None:
    """Nothing is written in this step, so each kept page and each tile of own keys can be spoilt alone."""
    made = small_step(
        [Sequence(200, 0, ((20, ()),) * 8), Sequence(520, 0, ((40, ()),) * 3), Sequence(90, 0, ((5, ()),))]
    )
    step, ranges = made.step, block_table(made.step.queries, TILE, TILE)
    seen_pages = np.asarray(visible(step.queries.places, step.pages.places(TILE)))
    seen_own = np.asarray(visible(step.queries.places, step.own_keys))
    first, end, own, own_end = (np.asarray(a) for a in (ranges.first, ranges.end, ranges.own, ranges.own_end))
    visits = 0
    for entry in range(2 + 5 + 1):
        expected = (first <= entry) & (entry < end)
        seen = seen_pages[:, entry * TILE : (entry + 1) * TILE].reshape(4, -1).any(axis=1)
        np.testing.assert_array_equal(expected, seen)
        spoilt = spoilt_parts(made, "pages", int(step.pages.page[entry]))
        np.testing.assert_array_equal(spoilt, expected, err_msg=f"entry {entry}")
        visits += spoilt.sum()
    for tile in range(4):
        expected = (own // TILE <= tile) & (tile * TILE < own_end) & (own < own_end)
        seen = seen_own[:, tile * TILE : (tile + 1) * TILE].reshape(4, -1).any(axis=1)
        np.testing.assert_array_equal(expected, seen)
        spoilt = spoilt_parts(made, "own", slice(tile * TILE, (tile + 1) * TILE))
        np.testing.assert_array_equal(spoilt, expected, err_msg=f"own tile {tile}")
        visits += spoilt.sum()
    assert visits == (end - first).sum() + (-(-own_end // TILE) - own // TILE)[own_end > own].sum()


def test_sizes_that_the_kernel_cannot_take_are_refused() -> None:
    made = small_step(LONG)
    attention = TpuAttention()
    table = attention.prepare(made.step.queries, made.step, made.shape)
    for wrong in ({"page": 64}, {"tokens": 500}, {"entries": 1 << 20}):
        with pytest.raises(AssertionError):
            attention.attend(made.q, made.keys, made.step.queries, made.step, replace(made.shape, **wrong), table)
