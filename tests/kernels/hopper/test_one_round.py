"""Gate and up of 384 tokens in one round of tiles equal product and activation, in Pallas's GPU interpreter."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from onepass.kernels.hopper.epilogue import GemmInput
from onepass.kernels.hopper.gate_up import gate_up_product
from onepass.kernels.hopper.one_round import one_round_width
from onepass.models.known import KNOWN
from onepass.models.layers import rms_norm
from onepass.models.quantize import EIGHT_BIT

ON_GPU = jax.default_backend() == "gpu"
INTERPRET: Any = (
    False if ON_GPU else plgpu.InterpretGPUParams(out_of_bounds_reads="uninitialized", uninitialized_memory="nan")
)
TOKENS, SIZE, LAYERS = 384, 320, 3  # five steps of 64 terms: more than are under way at once


def draw(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)


def activation(x: Any, weights: Any) -> np.ndarray:
    gate, up = (np.asarray(x, np.float32) @ np.asarray(one, np.float32).T for one in weights)
    return np.asarray(gate * up / (1 + np.exp(-gate)))


@pytest.mark.parametrize(
    ("mlp", "multiprocessors", "width"), [(384, 8, 96), (288, 8, 96), (192, 8, 48)], ids=["wide", "one idle", "narrow"]
)
def test_the_product_of_the_layer_that_was_asked_for(mlp: int, multiprocessors: int, width: int) -> None:
    x, weights = draw(0, TOKENS, SIZE), draw(1, LAYERS, 2, mlp, SIZE) * 0.1
    assert one_round_width(TOKENS, weights, multiprocessors) == width
    got = np.asarray(
        gate_up_product(GemmInput(x, jnp.int32(TOKENS)), weights, jnp.int32(1), multiprocessors, INTERPRET), np.float32
    )
    close = [np.allclose(got, activation(x, one), rtol=0.02, atol=0.05) for one in weights]
    assert close == [False, True, False]


def test_sums_are_divided_by_the_size_of_the_row() -> None:
    """As if x had been normed first; rows of other sizes are noticed."""
    x, weights, norm = draw(0, TOKENS, SIZE).astype(jnp.float32), draw(1, 1, 2, 384, SIZE) * 0.1, draw(2, SIZE)
    x = x * jnp.linspace(0.2, 5, TOKENS)[:, None]
    squares = jnp.stack([(part * part).sum(axis=1) for part in jnp.split(x, 2, axis=1)])
    fed = (x * norm.astype(jnp.float32)).astype(jnp.bfloat16)
    got = gate_up_product(GemmInput(fed, jnp.int32(TOKENS), squares, 1e-6), weights, jnp.int32(0), 8, INTERPRET)
    wanted = activation(rms_norm(x, norm, 1e-6), weights[0])
    other = gate_up_product(
        GemmInput(fed, jnp.int32(TOKENS), squares[:, ::-1], 1e-6), weights, jnp.int32(0), 8, INTERPRET
    )
    error, other_error = (np.linalg.norm(np.asarray(a, np.float32) - wanted) for a in (got, other))
    size = np.linalg.norm(wanted)
    assert error < 0.01 * size
    assert other_error > 0.1 * size


def test_eight_bits_are_multiplied_with_the_scales_of_their_rows() -> None:
    x, weights = draw(0, TOKENS, 256).astype(EIGHT_BIT), (draw(1, LAYERS, 2, 384, 256) * 8).astype(EIGHT_BIT)
    scales = jnp.abs(draw(2, LAYERS, 768).astype(jnp.float32)) / 64
    given = GemmInput(x, jnp.int32(TOKENS), scales=scales, factor=0.25)
    got = gate_up_product(given, weights, jnp.int32(1), 8, INTERPRET)
    assert got.dtype == EIGHT_BIT
    sums = np.asarray(x, np.float32) @ np.asarray(weights[1], np.float32).reshape(768, 256).T
    gate, up = np.split(sums * np.asarray(scales[1]) * 0.25, 2, axis=1)
    np.testing.assert_allclose(np.asarray(got, np.float32), gate * up / (1 + np.exp(-gate)), rtol=0.07, atol=0.002)


@pytest.mark.parametrize(
    ("model", "tokens", "width"),
    [
        ("qwen3-1.7b", 384, 96),
        ("qwen3-0.6b", 384, 48),
        ("qwen3-4b", 384, None),  # 9,728 columns are too many for one round
        ("qwen3-1.7b", 512, None),
        ("qwen3-1.7b", 256, None),
    ],
)
def test_where_it_is_one_round_on_an_h200(model: str, tokens: int, width: int | None) -> None:
    config = KNOWN[model]
    shape = (config.num_layers, 2, config.mlp_size, config.hidden_size)
    assert one_round_width(tokens, jax.ShapeDtypeStruct(shape, jnp.bfloat16), 132) == width
    in_eight_bits = one_round_width(tokens, jax.ShapeDtypeStruct(shape, EIGHT_BIT), 132)
    assert in_eight_bits == (width if width == 96 else None), "parts of 16 bytes are too narrow"
