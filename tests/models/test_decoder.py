"""The decoder computes the same in blocks of tokens as in one."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onepass.attention.base import RowShape
from onepass.attention.places import Places, concatenate, context_places
from onepass.attention.reference import Reference
from onepass.models import decoder
from onepass.models.config import ModelConfig, Rope
from onepass.models.decoder import Prefix, Rows
from onepass.models.products import XlaProducts
from onepass.models.random import random_weights

CONFIG = ModelConfig("llama", 97, 32, 3, 4, 2, 8, 48, 256, 1e-5, Rope(1e4), True)


class InOne(XlaProducts):
    """Products that are not in blocks on a CPU: what other devices do."""

    in_blocks = False


@pytest.mark.parametrize("sizes", [{"CPU_BLOCK": 16}, {"CPU_BLOCK": 30}, {"LARGE_ROW": 32, "WHOLE_TILE": 8}], ids=str)
def test_blocks_of_tokens_change_nothing(monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int]) -> None:
    products = XlaProducts() if "CPU_BLOCK" in sizes else InOne()
    shape = RowShape(rows=2, prefix=0, context=48, items=0, band=1, readouts=3, labels=1)
    places = context_places(jnp.array([48, 40]), 48)
    ids = jax.random.randint(jax.random.key(1), (2, 48), 0, 97)
    rows = Rows(ids, places, jnp.array([[0, 17, 47], [3, 5, 39]]))
    weights = random_weights(CONFIG, jnp.float32)

    def states() -> np.ndarray:
        run = jax.jit(decoder.hidden_states, static_argnums=(0, 1, 2, 6))
        loops.append(run.lower(CONFIG, Reference(), shape, weights, rows, None, products).as_text().count("while"))
        return np.asarray(run(CONFIG, Reference(), shape, weights, rows, None, products)[0])

    loops: list[int] = []
    jax.clear_caches()  # of the sizes before
    whole = states()
    for name, size in sizes.items():
        monkeypatch.setattr(decoder, name, size)
    jax.clear_caches()
    np.testing.assert_allclose(states(), whole, atol=1e-5)
    assert loops[1] > loops[0], "blocks are a loop of their own"


class InMultiples(XlaProducts):
    """Products that want all rows' tokens to be a multiple, as kernels with tiles do."""

    multiple = 64


@pytest.mark.parametrize("items", [0, 16])
def test_padding_to_a_multiple_changes_nothing(items: int) -> None:
    """Neither states nor kept keys; a read-out just past the row's tokens still means the prefix's last."""
    shape = RowShape(rows=2, prefix=16, context=24, items=items, band=items, readouts=3, labels=1)
    lengths = jnp.array([24, 20])
    context, tokens = context_places(lengths, 24), 24 + items
    own = jnp.broadcast_to(jnp.arange(items, dtype=jnp.int32), (2, items))
    item = Places(jnp.ones_like(own), jnp.zeros_like(own), own + 36)
    places = concatenate(replace(context, position=context.position + 12), item)
    rows = Rows(
        jax.random.randint(jax.random.key(1), (2, tokens), 0, 97), places, jnp.array([[0, 5, 19], [tokens] * 3])
    )
    keys = jax.random.normal(jax.random.key(2), (3, 2, 16, 2, 8))
    prefix = Prefix(keys, keys[::-1], jnp.array([12, 12]), jax.random.normal(jax.random.key(3), (2, 32)))
    weights = random_weights(CONFIG, jnp.float32)

    def run(products: XlaProducts) -> tuple[np.ndarray, ...]:
        states = decoder.hidden_states(CONFIG, Reference(), shape, weights, rows, prefix, products)
        return tuple(map(np.asarray, states))

    for padded, plain in zip(run(InMultiples()), run(XlaProducts()), strict=True):
        assert padded.shape == plain.shape
        np.testing.assert_allclose(padded, plain, atol=1e-5)
    assert np.allclose(run(InMultiples())[0][1], prefix.hidden[1])
