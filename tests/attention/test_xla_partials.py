"""Blocks, windows and shared keys are ways to compute one softmax."""

import jax.numpy as jnp
import numpy as np
import pytest

from onepass.attention.base import Keys
from onepass.attention.places import Places, context_places
from onepass.attention.reference import masked_attention, visible
from onepass.attention.xla_partials import Own, attend

ROWS, KV_HEADS, GROUP, HEAD_DIM = 2, 3, 2, 8


def draw(seed: int, *size: int, dtype: str = "float32") -> jnp.ndarray:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(size), dtype)


def items(width: int, length: int, start: int) -> Places:
    """Rows of items of `length` tokens each."""
    index = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (ROWS, width))
    return Places(1 + index // length, jnp.zeros_like(index), start + index % length)


@pytest.mark.parametrize(("width", "band"), [(96, 16), (160, 64), (80, 32), (48, 64), (144, 16)])
def test_a_window_in_blocks_sees_what_the_rule_says(width: int, band: int) -> None:
    places = items(width, min(band, 15), 0)
    q = draw(0, ROWS, width, KV_HEADS, GROUP, HEAD_DIM)
    keys = Keys(draw(1, ROWS, width, KV_HEADS, HEAD_DIM), draw(2, ROWS, width, KV_HEADS, HEAD_DIM), places)
    wanted = masked_attention(q, keys, places, visible)
    for block_bytes in (1, 1 << 30):
        got, _ = attend(q, [], Own(places, keys, band), block_bytes)
        np.testing.assert_allclose(got, wanted, atol=2e-6)


@pytest.mark.parametrize("block_bytes", [1, 1 << 30])
def test_shared_and_own_keys_are_one_softmax(block_bytes: int) -> None:
    width, shared = 96, 40
    places = items(width, 12, 40)
    q = draw(0, ROWS, width, KV_HEADS, GROUP, HEAD_DIM) * 3
    own = Keys(draw(1, ROWS, width, KV_HEADS, HEAD_DIM), draw(2, ROWS, width, KV_HEADS, HEAD_DIM), places)
    context = Keys(
        draw(3, ROWS, shared, KV_HEADS, HEAD_DIM),
        draw(4, ROWS, shared, KV_HEADS, HEAD_DIM),
        context_places(jnp.array([40, 0]), shared),
    )
    got, lse = attend(q, [context], Own(places, own, 16), block_bytes)
    both = Keys(
        *(jnp.concatenate([a, b], axis=1) for a, b in ((context.k, own.k), (context.v, own.v))),
        Places(
            *(
                jnp.concatenate([a, b], axis=1)
                for a, b in zip(vars(context.places).values(), vars(places).values(), strict=True)
            )
        ),
    )
    np.testing.assert_allclose(got, masked_attention(q, both, places, visible), atol=2e-6)
    assert np.isfinite(lse).all()


def test_padding_of_a_context_decides_nothing() -> None:
    """Keys that are not valid may be of any size: here they would underflow every other weight."""
    width = 32
    places = items(width, 8, 0)
    q = draw(0, ROWS, width, KV_HEADS, GROUP, HEAD_DIM)
    own = Keys(draw(1, ROWS, width, KV_HEADS, HEAD_DIM), draw(2, ROWS, width, KV_HEADS, HEAD_DIM), places)
    padding = Keys(
        1e4 * draw(3, ROWS, 16, KV_HEADS, HEAD_DIM),
        1e4 * draw(4, ROWS, 16, KV_HEADS, HEAD_DIM),
        context_places(jnp.array([0, 0]), 16),
    )
    alone, alone_lse = attend(q, [], Own(places, own, 16), 1 << 22)
    beside, beside_lse = attend(q, [padding], Own(places, own, 16), 1 << 22)
    np.testing.assert_array_equal(beside, alone)
    np.testing.assert_array_equal(beside_lse, alone_lse)
    short = Keys(
        padding.k.at[:, :5].divide(1e4), padding.v.at[:, :5].divide(1e4), context_places(jnp.array([5, 5]), 16)
    )
    for got, wanted in zip(
        attend(q, [short], None, 1 << 22), attend(q, [short.take(0, 5)], None, 1 << 22), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    nothing, lse = attend(q, [padding], None, 1 << 22)
    assert (np.asarray(nothing) == 0).all()
    assert (np.asarray(lse) == -np.inf).all()


def test_rounded_weights_count_as_rounded() -> None:
    """Where all values are alike, so is the result: the weights' sum has the same roundings as the weighted values."""
    keys = Keys(
        draw(0, ROWS, 64, KV_HEADS, HEAD_DIM, dtype="bfloat16"),
        jnp.full((ROWS, 64, KV_HEADS, HEAD_DIM), 1.5, jnp.bfloat16),
        context_places(jnp.array([64, 50]), 64),
    )
    got, _ = attend(draw(1, ROWS, 32, KV_HEADS, GROUP, HEAD_DIM, dtype="bfloat16"), [keys], None, 1 << 22)
    np.testing.assert_allclose(np.asarray(got), 1.5, rtol=1e-6)
