"""Products of int8 weights in AMX's tiles: widened ones equal XLA's of the same weights; integers equal their
definition, in which activations have a scale for as many terms as weights, and stop at the last real token. With the
real instructions or a shim for them."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels.cpu.amx import amx_library
from kernels.cpu.amx.test_layer_ops import CONFIG, DTYPES, LAYERS, TOKENS, difference, draw, layers_of, wide
from onepass.kernels.cpu.layer_ops import AmxLayerOps
from onepass.models.int8 import Int8Scales, layers_in_int8
from onepass.models.layer_ops import XlaLayerOps
from onepass.models.layers import rotary_angles
from onepass.models.rotation import group_of, rotated
from onepass.models.weights import Layers

pytestmark = pytest.mark.skipif(amx_library.problem() is not None, reason=str(amx_library.problem()))
AT = 1
SIZES = pytest.mark.parametrize(
    ("hidden", "mlp", "blocks"),
    [
        (192, 1600, (192, 64)),
        (128, 384, (128, 192)),
        (64, 8192, (64, 128)),
        (576, 1536, (576, 192)),
        (896, 384, (448, 192)),
    ],
)  # of gate and up, and of down; sums of 8,192 terms meet in memory


@pytest.fixture(autouse=True, scope="module")
def _library() -> None:
    amx_library.load_int8()


def int8_layers(hidden: int, mlp: int, dtype: Any, scales: Int8Scales, with_bias: bool = True) -> Layers:
    def bias(seed: int, *axes: int) -> jax.Array | None:
        return draw(seed, LAYERS, *axes, dtype=dtype) if with_bias else None

    layers = layers_of(
        attention_norm=draw(3, LAYERS, hidden, dtype=dtype),
        qkv=draw(1, LAYERS, 2, 4, 32, hidden, dtype=dtype),
        qkv_bias=bias(2, 2, 4, 32),
        out=draw(4, LAYERS, hidden, 2, 3, 32, dtype=dtype),
        out_bias=bias(5, hidden),
        mlp_norm=8 * draw(6, LAYERS, hidden, dtype=dtype),
        gate_up=draw(7, LAYERS, 2, mlp, hidden, dtype=dtype),
        down=draw(8, LAYERS, hidden, mlp, dtype=dtype),
        down_bias=bias(9, hidden),
    )
    return layers_in_int8(layers, scales)


def given(hidden: int, tokens: int, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """A stream with outliers, and heads' results."""
    stream = draw(20, tokens, hidden, dtype=jnp.float32).at[:, 5].multiply(40)
    return stream, draw(21, tokens, 2, 3, 32, dtype=dtype)


def computed(ops: XlaLayerOps, layers: Layers, stream: jax.Array, attended: jax.Array, count: int) -> dict[str, Any]:
    n, config = jnp.int32(count), replace(CONFIG, hidden_size=stream.shape[1])
    angles = rotary_angles(config, jnp.arange(stream.shape[0]))
    activation = ops.gate_up(config, layers, AT, stream, n)
    return {
        **dict(zip("qkv", ops.qkv(config, layers, AT, stream, angles, n), strict=True)),
        "attn_out": ops.attn_out(config, layers, AT, stream, attended, n),
        "mlp": ops.down(config, layers, AT, stream, activation, n),
    }


@DTYPES
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("scales", ["fine", "coarse"])
def test_wide_products_equal_xlas(scales: Int8Scales, tokens: int, dtype: Any) -> None:
    """With coarse scales they are XLA's."""
    layers, (stream, attended) = int8_layers(192, 384, dtype, scales), given(192, tokens, dtype)
    left = AmxLayerOps().left_to_xla(CONFIG, layers)
    assert list(left) == ([] if scales == "fine" else ["attn_out", "gate_up", "down"])
    result, expected = (computed(ops, layers, stream, attended, tokens) for ops in (AmxLayerOps(), XlaLayerOps()))
    for name, wanted in expected.items():
        assert difference(result[name], wide(wanted)) <= (2e-6 if dtype == jnp.float32 else 0.02), name


def test_offsets_and_blocks_of_16_are_widened_too() -> None:
    """As quantised files have them."""
    layers = int8_layers(192, 384, jnp.float32, "fine")
    finer = {f"{name}_scale": jnp.repeat(getattr(layers, f"{name}_scale"), 2, axis=-1) for name in ("qkv", "down")}
    finer = {
        name: scale * (1 + draw(n, *scale.shape, dtype=jnp.float32)) for n, (name, scale) in enumerate(finer.items())
    }
    offsets = {
        f"{name}_offset": 0.1 * draw(9, *finer[f"{name}_scale"].shape, dtype=jnp.float32) for name in ("qkv", "down")
    }
    layers, (stream, attended) = replace(layers, **finer, **offsets), given(192, 40, jnp.float32)
    every = (AmxLayerOps(), AmxLayerOps(integer_products=True), XlaLayerOps())
    *results, expected = (computed(ops, layers, stream, attended, 40) for ops in every)
    for name, wanted in expected.items():
        assert all(difference(result[name], wide(wanted)) <= 2e-6 for result in results), name


def quantized(x: np.ndarray, block: int) -> np.ndarray:
    """What is left of rotated activations in 8 bits."""
    rows = rotated(x.astype(np.float32), group_of(block)).reshape(*x.shape[:-1], -1, block)
    top = np.abs(rows).max(axis=-1, keepdims=True)
    scale = top / np.float32(127)
    return (np.rint(rows * (np.float32(127) / np.where(top > 0, top, 1))) * scale).reshape(x.shape).astype(np.float64)


def weight(layers: Layers, name: str) -> tuple[np.ndarray, int]:
    """In float64 [..., terms], rotated as it is stored, and the terms of a scale."""
    numbers, scale = (np.asarray(getattr(layers, name + what)[AT], np.float64) for what in ("", "_scale"))
    block = numbers.size // scale.size
    return (numbers.reshape(*scale.shape, block) * scale[..., None]).reshape(scale.shape[0], -1), block


def check_nearly_all(result: Any, wanted: np.ndarray, allowed: float) -> None:
    """Of 8-bit numbers at the edge between two a few are the other one, so that some results are off by more."""
    off = np.abs(wide(result) - wanted) / np.abs(wanted).max()
    assert off.max() <= 0.01
    assert np.median(off) <= allowed


@DTYPES
@SIZES
@pytest.mark.parametrize("tokens", [1, 33, 200])
def test_integer_products_equal_their_definition(
    hidden: int, mlp: int, blocks: tuple[int, int], tokens: int, dtype: Any
) -> None:
    layers, (stream, attended) = int8_layers(hidden, mlp, dtype, "coarse"), given(hidden, tokens, dtype)
    result = computed(AmxLayerOps(integer_products=True), layers, stream, attended, tokens)
    out, block = weight(layers, "out")
    assert block == 192
    product = quantized(wide(attended).reshape(tokens, -1), block) @ out.T
    check_nearly_all(result["attn_out"], wide(stream) + product + wide(layers.out_bias[AT]), 1e-6)
    x = np.asarray(stream, np.float64)
    x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + CONFIG.rms_eps) * wide(layers.mlp_norm[AT])
    both, block = weight(layers, "gate_up")
    gate, up = np.split(quantized(x, block) @ both.T, 2, axis=-1)
    with np.errstate(over="ignore"):
        activation = gate * up / (1 + np.exp(-gate))
    down, down_block = weight(layers, "down")
    assert (block, down_block) == blocks
    added = quantized(activation, down_block) @ down.T + wide(layers.down_bias[AT])
    # The gate is right to 7e-5, and that of 8-bit numbers.
    check_nearly_all(wide(result["mlp"]) - wide(stream), added, 1e-3)


@DTYPES
def test_integer_products_are_near_wide_ones_and_are_other_ones(dtype: Any) -> None:
    layers, (stream, attended) = int8_layers(576, 1536, dtype, "coarse"), given(576, 200, dtype)
    every = (AmxLayerOps(integer_products=True), AmxLayerOps())
    result, expected = (computed(ops, layers, stream, attended, 200) for ops in every)
    for name in ("attn_out", "mlp"):
        added, wanted = wide(result[name]) - wide(stream), wide(expected[name]) - wide(stream)
        assert 1e-4 <= np.abs(added - wanted).mean() / np.abs(wanted).mean() <= 0.08, name
    for name in "qkv":
        np.testing.assert_array_equal(result[name], expected[name], err_msg=f"{name} is widened")


def test_sums_of_integers_are_exact() -> None:
    """Scales of 1 leave the sums of integers as they are."""
    rng, tokens = np.random.default_rng(3), 70
    layers = int8_layers(192, 384, jnp.float32, "coarse", with_bias=False)
    numbers = rng.integers(-128, 128, layers.out.shape)
    layers = replace(layers, out=jnp.asarray(numbers, jnp.int8), out_scale=jnp.ones_like(layers.out_scale))
    activations = rng.integers(-127, 128, (tokens, 192))
    activations[:, 0] = 127  # so that every block's numbers are their own quantised ones
    attended = jnp.asarray(rotated(activations / np.float32(64), 64).reshape(tokens, 2, 3, 32), jnp.float32)
    result = computed(AmxLayerOps(integer_products=True), layers, jnp.zeros((tokens, 192)), attended, tokens)
    np.testing.assert_array_equal(result["attn_out"], activations @ numbers[AT].reshape(192, 192).T)


@DTYPES
@pytest.mark.parametrize("count", [0, 1, 33, 64, 100])
def test_integer_products_stop_at_the_last_real_token(count: int, dtype: Any) -> None:
    """Real tokens get what they get alone; the stream of the others stays, and NaN in it harms nobody."""
    layers, (stream, attended) = int8_layers(192, 1600, dtype, "coarse"), given(192, 100, dtype)
    ops = AmxLayerOps(integer_products=True)
    whole = computed(ops, layers, stream, attended, 100)
    broken = stream.at[count:].set(jnp.nan)
    part = computed(ops, layers, broken, attended.at[count:].set(jnp.nan), count)
    for name in ("attn_out", "mlp"):
        np.testing.assert_array_equal(part[name][:count], whole[name][:count], err_msg=name)
        np.testing.assert_array_equal(part[name][count:], broken[count:], err_msg=name)
    if count:
        alone = computed(ops, layers, stream[:1], attended[:1], 1)
        for name in ("attn_out", "mlp"):
            np.testing.assert_array_equal(alone[name][0], whole[name][0], err_msg=f"{name} alone")


@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize("places", [[3], [3, 5, 6, 17, 40, 41]], ids=["one", "more"])
@pytest.mark.parametrize("hidden", [192, 896])
def test_numbers_that_are_not_finite_are_not_hidden(hidden: int, places: list[int], broken: float) -> None:
    """In a row of one scale and of two, of which one has none."""
    layers, (stream, attended) = int8_layers(hidden, 384, jnp.float32, "coarse"), given(hidden, 40, jnp.float32)
    ops, at = AmxLayerOps(integer_products=True), np.array(places)
    signs = jnp.where(at % 2, 1, -1) * broken
    attended = attended.reshape(40, -1).at[7, at].set(signs).reshape(attended.shape)
    result = computed(ops, layers, stream.at[7, at].set(signs), attended, 40)
    for name in ("attn_out", "mlp"):
        finite = np.isfinite(wide(result[name])).all(axis=-1)
        assert [int(n) for n in np.flatnonzero(~finite)] == [7], name
