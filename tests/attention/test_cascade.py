"""Cascade attention equals the reference for any mixture of prefix, context, items and branches."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.attention.base import Asking, Keys, RowShape
from onepass.attention.cascade import Cascade
from onepass.attention.places import PADDING, Places, context_places
from onepass.attention.reference import Reference

KV_HEADS, GROUP, HEAD_DIM = 2, 3, 8


def row_places(prefix: int, context: int, families: list[tuple[int, list[int]]]) -> list[tuple[int, int, int]]:
    """(segment, parent, position) of a row: `context` tokens, then families of an item and its branches."""
    places = [(0, 0, prefix + i) for i in range(context)]
    start, segment = prefix + context, 0
    for item, branches in families:
        segment += 1
        own = segment
        places += [(own, 0, start + i) for i in range(item)]
        for branch in branches:
            segment += 1
            places += [(segment, own, start + item + i) for i in range(branch)]
    return places


PREFIX, CONTEXT, ITEMS, ROWS, READOUTS = 16, 24, 64, 2, 4


@st.composite
def rows(draw, longest: int):
    """Two rows of a prefix, a context, and families of at most `longest` tokens, filling at most ITEMS tokens."""
    made = []
    for _ in range(ROWS):
        families, used = [], 0
        for _ in range(draw(st.integers(1, 7))):
            item = draw(st.integers(0, min(longest, ITEMS - used)))
            branches = []
            for _ in range(draw(st.integers(0, 3))):
                left = min(longest, ITEMS - used) - item - sum(branches)
                if left > 0:
                    branches.append(draw(st.integers(1, min(4, left))))
            families.append((item, branches))
            used += item + sum(branches)
        made.append(
            {"prefix": draw(st.integers(0, PREFIX)), "context": draw(st.integers(0, CONTEXT)), "families": families}
        )
    return made


@functools.cache
def programs(band: int, block_bytes: int):
    """Reference and cascade, compiled once a shape."""
    shape = RowShape(ROWS, PREFIX, CONTEXT, ITEMS, band, READOUTS, 1)

    def both(asking, own, prefix):
        cascade = Cascade(block_bytes=block_bytes)
        return Reference().full(asking, own, prefix, shape), cascade.full(asking, own, prefix, shape)

    def some(asking, own, prefix):
        return Cascade().readouts(asking, own, prefix, shape)

    return jax.jit(both), jax.jit(some)


@pytest.mark.parametrize(("band", "block_bytes"), [(8, 1 << 26), (32, 1 << 26), (64, 1 << 26), (16, 4096)])
@settings(max_examples=25, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**31))
def test_cascade_equals_the_reference(data, seed: int, band: int, block_bytes: int) -> None:
    specs = data.draw(rows(band))
    rng = np.random.default_rng(seed)
    grid = np.full((ROWS, CONTEXT + ITEMS, 3), (PADDING, PADDING, 0), np.int32)
    for r, spec in enumerate(specs):
        places = np.array(row_places(**spec), np.int32).reshape(-1, 3)
        grid[r, : spec["context"]] = places[: spec["context"]]
        grid[r, CONTEXT : CONTEXT + len(places) - spec["context"]] = places[spec["context"] :]
    own_places = Places(*(jnp.array(grid[..., i]) for i in range(3)))
    n = CONTEXT + ITEMS

    def draw(*size: int) -> jax.Array:
        return jnp.array(rng.standard_normal(size), jnp.float32)

    own = Keys(draw(ROWS, n, KV_HEADS, HEAD_DIM), draw(ROWS, n, KV_HEADS, HEAD_DIM), own_places)
    prefix_places = context_places(jnp.array([s["prefix"] for s in specs]), PREFIX)
    prefix = Keys(draw(ROWS, PREFIX, KV_HEADS, HEAD_DIM), draw(ROWS, PREFIX, KV_HEADS, HEAD_DIM), prefix_places)
    asking = Asking(draw(ROWS, n, KV_HEADS, GROUP, HEAD_DIM), own_places, jnp.broadcast_to(jnp.arange(n), (ROWS, n)))
    full, readouts = programs(band, block_bytes)
    wanted, got = map(np.asarray, full(asking, own, prefix))
    real = grid[..., 0] != PADDING
    np.testing.assert_allclose(got[real], wanted[real], atol=1e-5)
    assert np.isfinite(got).all()

    at = rng.integers(0, n, (ROWS, READOUTS))
    pick = jax.tree.map(
        lambda a: np.take_along_axis(np.asarray(a), at.reshape(*at.shape, *[1] * (a.ndim - 2)), 1), asking
    )
    some = np.asarray(readouts(Asking(pick.q, pick.places, jnp.array(at)), own, prefix))
    picked = pick.places.segment != PADDING
    both = np.take_along_axis(wanted, at[:, :, None, None, None], axis=1)
    np.testing.assert_allclose(some[picked], both[picked], atol=1e-5)


def test_reference_equals_softmax_written_out() -> None:
    """The definition itself, against a loop over heads and tokens in float64."""
    rng = np.random.default_rng(0)
    n = 5
    grid = np.array([[(0, 0, 0), (0, 0, 1), (1, 0, 2), (1, 0, 3), (2, 0, 2)]])
    places = Places(*(jnp.array(grid[..., i]) for i in range(3)))
    sees = [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 4]]
    q = rng.standard_normal((1, n, KV_HEADS, GROUP, HEAD_DIM))
    k, v = rng.standard_normal((2, 1, n, KV_HEADS, HEAD_DIM))
    wanted = np.zeros_like(q)
    for t, keys in enumerate(sees):
        for h in range(KV_HEADS):
            for g in range(GROUP):
                scores = np.array([q[0, t, h, g] @ k[0, j, h] for j in keys]) / np.sqrt(HEAD_DIM)
                weights = np.exp(scores - scores.max())
                wanted[0, t, h, g] = (weights / weights.sum()) @ v[0, keys, h]
    f32 = lambda a: jnp.array(a, jnp.float32)  # noqa: E731
    asking = Asking(f32(q), places, jnp.arange(n)[None])
    got = Reference().full(asking, Keys(f32(k), f32(v), places), None, RowShape(1, 0, 2, 3, 4, 1, 1))
    np.testing.assert_allclose(got, wanted, atol=1e-5)


@pytest.mark.parametrize("block_bytes", [None, 1 << 10])
def test_reference_in_blocks_equals_whole(block_bytes: int | None) -> None:
    rng = np.random.default_rng(1)
    places = context_places(jnp.array([24, 20]), 24)
    q = jnp.array(rng.standard_normal((2, 24, KV_HEADS, GROUP, HEAD_DIM)), jnp.float32)
    k, v = (jnp.array(rng.standard_normal((2, 24, KV_HEADS, HEAD_DIM)), jnp.float32) for _ in range(2))
    asking = Asking(q, places, jnp.broadcast_to(jnp.arange(24), (2, 24)))
    shape = RowShape(2, 0, 24, 0, 1, 1, 1)
    whole = Reference(block_bytes=None).full(asking, Keys(k, v, places), None, shape)
    blocks = Reference(block_bytes=block_bytes).full(asking, Keys(k, v, places), None, shape)
    np.testing.assert_allclose(blocks, whole, atol=1e-6)
