"""Weights in int8 are the same function within their rounding, and an outlier harms its own block only."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from onepass.engine.load import check_int8
from onepass.errors import ConfigError
from onepass.models.int8 import BLOCK, in_int8
from onepass.models.known import KNOWN
from onepass.models.random import random_weights
from onepass.models.weights import MATRICES, Weights


def small(dtype: object = jnp.float32, hidden: int = 64) -> Weights:
    config = replace(KNOWN["qwen2.5-1.5b"], num_layers=2, hidden_size=hidden, mlp_size=96, vocab_size=50)
    return random_weights(config, dtype)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
def test_every_weight_is_within_half_a_step_of_its_block(dtype: object) -> None:
    plain, narrow = small(dtype), in_int8(small(dtype))
    assert narrow.layers.qkv.dtype == narrow.layers.down.dtype == jnp.int8
    for name in MATRICES:
        before, after = (np.asarray(getattr(one.layers.layer(1), name), np.float32) for one in (plain, narrow))
        assert before.shape == after.shape
        rows = before.reshape(-1, BLOCK)  # a row's terms lie side by side, in every matrix
        step = np.abs(rows).max(axis=-1, keepdims=True) / 127
        rounding = 0.004 * np.abs(rows) if dtype == jnp.bfloat16 else 1e-6
        assert (np.abs(after.reshape(rows.shape) - rows) <= 0.51 * step + rounding).all(), name


def test_an_outlier_costs_precision_in_its_own_block_only() -> None:
    plain = small()
    down = plain.layers.down.at[0, 3, 40].set(1000.0)  # in the second block of its row
    loud = in_int8(replace(plain, layers=replace(plain.layers, down=down)))
    quiet = in_int8(plain)
    row = np.asarray(loud.layers.layer(0).down)[3]
    np.testing.assert_array_equal(row[:32], np.asarray(quiet.layers.layer(0).down)[3, :32])
    assert row[40] == pytest.approx(1000.0)
    assert not row[41:64].any(), "which is too small for the block's step now"


def test_a_block_of_zeros_stays_zero() -> None:
    plain = small()
    nothing = replace(plain, layers=replace(plain.layers, down=jnp.zeros_like(plain.layers.down)))
    assert not np.asarray(in_int8(nothing).layers.layer(0).down).any()


def test_rows_that_are_no_multiple_of_the_block_are_refused() -> None:
    config = replace(KNOWN["qwen2.5-1.5b"], hidden_size=72)
    with pytest.raises(ConfigError, match="multiples of 32; got hidden size 72"):
        check_int8(config, 1)
    with pytest.raises(ConfigError, match="one CPU; got 2 devices"):
        check_int8(config, 2)
