"""Runs of a step's slots: every kept token is in exactly one, and none crosses a page."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.steps import layout, random_sequences
from onepass.kernels.tpu.pages import Order, logical, ordered, runs


@pytest.mark.parametrize("seed", range(8))
def test_runs_hold_every_kept_token_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    step = layout(random_sequences(rng, 5, 400), 4096, 64, 128, 80, rng)
    found = jax.jit(lambda slots: runs(slots, 128, 64))(step.slots)
    slots = np.full(4096, -1)
    for n in range(int(found.count)):
        token, page, offset, length = (int(a[n]) for a in (found.token, found.page, found.offset, found.length))
        assert 0 < length <= 128 - offset
        assert (slots[token : token + length] == -1).all()
        slots[token : token + length] = page * 128 + offset + np.arange(length)
    np.testing.assert_array_equal(slots, step.slots)


def test_nothing_kept_is_no_run() -> None:
    assert int(runs(jnp.full(128, -1, jnp.int32), 128, 8).count) == 0


@pytest.mark.parametrize(
    ("kv_heads", "head_dim", "shape"),
    [(8, 128, (5, 128, 8, 128)), (1, 128, (5, 1, 128, 128)), (3, 64, (5, 3, 64, 128)), (1, 64, (5, 1, 64, 128))],
)
def test_axes_are_named_as_they_lie(kv_heads: int, head_dim: int, shape: tuple[int, ...]) -> None:
    order = Order.of(kv_heads, head_dim)
    page = np.arange(5 * 128 * kv_heads * head_dim).reshape(5, 128, kv_heads, head_dim)
    assert ordered(page, order).shape == shape
    np.testing.assert_array_equal(logical(ordered(page, order), order), page)
