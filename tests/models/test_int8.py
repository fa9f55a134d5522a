"""Weights in int8 are the same function within their rounding, and an outlier harms its own block only."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from onepass.engine.load import check_int8
from onepass.errors import ConfigError
from onepass.models.int8 import BLOCK, Int8Scales, block_terms, in_int8, is_coarse
from onepass.models.known import KNOWN
from onepass.models.random import random_weights
from onepass.models.rotation import group_of, rotated
from onepass.models.weights import MATRICES, Weights, is_rotated

MEDIUM: tuple[Int8Scales, ...] = ("paired", "medium")


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


@pytest.mark.parametrize(
    ("terms", "out", "gate_up", "down"),
    [
        (576, 576, 576, 192),
        (1536, 512, 512, 192),
        (896, 448, 448, 128),
        (2048, 512, 512, 128),
        (704, 64, 64, 64),
        (96, 32, 32, 32),
    ],
)
def test_coarse_blocks_are_the_largest_that_divide_a_row(terms: int, out: int, gate_up: int, down: int) -> None:
    """And none are finer than whole steps of tiles, but for the product before attention."""
    found = {name: block_terms(name, terms, "coarse") for name in MATRICES}
    assert found == {"qkv": 32, "out": out, "gate_up": gate_up, "down": down}
    assert {block_terms(name, terms, "fine") for name in MATRICES} == {32}
    blocks = (16, 32, 64, 96, 192, 576, 640)
    assert [is_coarse(block) for block in blocks] == [False, False, True, False, True, True, False]
    assert [is_rotated(block) for block in blocks] == [False, False, True, True, True, True, True]


@pytest.mark.parametrize(
    ("terms", "block"), [(576, 96), (1536, 96), (896, 64), (2048, 64), (4864, 64), (960, 96), (160, 32), (32, 32)]
)
def test_medium_blocks_are_two_or_three_of_the_fine_ones(terms: int, block: int) -> None:
    assert {block_terms(name, terms, scales) for name in MATRICES for scales in MEDIUM} == {block}


@pytest.mark.parametrize(
    ("scales", "blocks"),
    [
        ("coarse", {"qkv": 32, "out": 576, "gate_up": 576, "down": 192}),
        ("paired", {"qkv": 96, "out": 96, "gate_up": 96, "down": 96}),
        ("medium", {"qkv": 96, "out": 96, "gate_up": 96, "down": 96}),
    ],
)
def test_rotated_weights_are_within_half_a_step_of_their_blocks(scales: Int8Scales, blocks: dict[str, int]) -> None:
    config = replace(KNOWN["smollm2-135m"], num_layers=2, vocab_size=50)
    plain = random_weights(config, jnp.float32)
    narrow = in_int8(plain, scales)
    for name, block in blocks.items():
        before, after = (np.asarray(getattr(one.layers.layer(1), name)) for one in (plain, narrow))
        assert np.abs(after - before).max() <= 0.02 * np.abs(before).max(), name
        wanted = before.reshape(-1, block)
        if is_rotated(block):
            wanted = rotated(wanted, group_of(block)) / group_of(block)  # as it is stored
        scale = np.asarray(getattr(narrow.layers, f"{name}_scale")[1]).reshape(-1, 1)
        stored = np.asarray(getattr(narrow.layers, name)[1], np.float32).reshape(-1, block) * scale
        top = np.abs(wanted)
        if scales == "paired":
            top = top[:, ::2] + top[:, 1::2]
            both = np.abs(np.asarray(getattr(narrow.layers, name), np.int32)).reshape(-1, 2).sum(axis=-1)
            assert 120 <= both.max() <= 128, name
        assert (np.abs(stored - wanted) <= 0.51 * top.max(axis=-1, keepdims=True) / 127).all(), name


@pytest.mark.parametrize("group", [16, 64])
def test_twice_rotated_is_itself_times_the_group_and_an_outlier_is_spread(group: int) -> None:
    rows = np.random.default_rng(1).standard_normal((3, 192)).astype(np.float32)
    np.testing.assert_allclose(rotated(rotated(rows, group), group), group * rows, rtol=1e-5, atol=1e-5 * group)
    found = np.linalg.norm(rotated(rows, group), axis=-1)
    np.testing.assert_allclose(found, np.sqrt(group) * np.linalg.norm(rows, axis=-1), rtol=1e-5)
    alone = np.zeros(192, np.float32)
    alone[70] = 8
    assert np.flatnonzero(rotated(alone, group)).tolist() == list(range(64, 64 + group))


def test_groups_are_larger_where_scales_are_of_more_terms() -> None:
    assert [group_of(block) for block in (16, 32, 64, 96, 128, 192, 576)] == [1, 1, 16, 16, 64, 64, 64]


def test_rows_that_are_no_multiple_of_the_block_are_refused() -> None:
    config = replace(KNOWN["qwen2.5-1.5b"], hidden_size=72)
    with pytest.raises(ConfigError, match="multiples of 32; got hidden size 72"):
        check_int8(config, 1)
    with pytest.raises(ConfigError, match="one CPU; got 2 devices"):
        check_int8(config, 2)
