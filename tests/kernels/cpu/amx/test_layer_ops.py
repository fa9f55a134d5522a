"""The AMX products equal the same in float64, for any number of tokens, every layer, with and without bias: in bf16 to
the rounding of one number, in float32 to that of float32. They stop at the last real token. With the real instructions
or a shim for them."""

from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels.cpu.amx import amx_library
from onepass.kernels.cpu.layer_ops import AmxLayerOps
from onepass.models.known import known_config
from onepass.models.layer_ops import XlaLayerOps
from onepass.models.layers import rotary_angles
from onepass.models.weights import Layers

pytestmark = pytest.mark.skipif(amx_library.problem() is not None, reason=str(amx_library.problem()))
SIZE, MLP, LAYERS = 96, 1600, 3
TOKENS = [1, 31, 32, 33, 200]
CONFIG = replace(known_config("smollm2-135m"), hidden_size=SIZE, num_heads=4, num_kv_heads=2, head_dim=32)
DTYPES = pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32], ids=["bf16", "f32"])


@pytest.fixture(autouse=True, scope="module")
def _library() -> None:
    amx_library.load()


def draw(seed: int, *axes: int, dtype: Any = jnp.bfloat16) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(axes) / 4, dtype)


def layers_of(**given: jax.Array | None) -> Layers:
    return Layers(**{field.name: given.get(field.name) for field in fields(Layers)})


def wide(a: jax.Array) -> np.ndarray:
    return np.asarray(a, np.float64)


def normed(stream: jax.Array, norm: jax.Array) -> np.ndarray:
    """In float64, rounded where the model rounds."""
    x = wide(stream)
    x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + CONFIG.rms_eps)
    return wide(jnp.asarray(wide(jnp.asarray(x, norm.dtype)) * wide(norm), norm.dtype))


def difference(result: Any, expected: np.ndarray) -> float:
    """The largest, by the largest of what is right."""
    return float(np.abs(wide(result) - expected).max() / np.abs(expected).max())


@DTYPES
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_attn_out_is_added_to_the_residual_stream_in_float32(tokens: int, with_bias: bool, dtype: Any) -> None:
    bias = draw(3, LAYERS, SIZE, dtype=dtype) if with_bias else None
    layers = layers_of(out=draw(1, LAYERS, SIZE, 2, 2, 32, dtype=dtype), out_bias=bias)
    residual, attended = draw(4, tokens, SIZE, dtype=jnp.float32), draw(5, tokens, 2, 2, 32, dtype=dtype)
    for at in range(LAYERS):
        added = 0 if bias is None else wide(bias)[at]
        product = np.einsum("td,nd->tn", wide(attended).reshape(tokens, -1), wide(layers.out)[at].reshape(SIZE, -1))
        result = AmxLayerOps().attn_out(CONFIG, layers, jnp.int32(at), residual, attended, jnp.int32(tokens))
        assert difference(result, wide(residual) + product + added) <= 1e-6


def mlp_layers(dtype: Any, with_bias: bool = False) -> Layers:
    """More terms than are added up at once, so that sums of several chunks meet in memory."""
    return layers_of(
        gate_up=4 * draw(1, LAYERS, 2, MLP, SIZE, dtype=dtype),
        mlp_norm=8 * draw(2, LAYERS, SIZE, dtype=dtype),
        down=draw(3, LAYERS, SIZE, MLP, dtype=dtype),
        down_bias=draw(5, LAYERS, SIZE, dtype=dtype) if with_bias else None,
    )


def mlp(layers: Layers, at: int, stream: jax.Array, residual: jax.Array, count: int) -> jax.Array:
    activation = AmxLayerOps().gate_up(CONFIG, layers, at, stream, jnp.int32(count))
    return AmxLayerOps().down(CONFIG, layers, jnp.int32(at), residual, activation, jnp.int32(count))


@DTYPES
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_mlp_with_its_activation_is_added_to_the_stream(tokens: int, with_bias: bool, dtype: Any) -> None:
    layers = mlp_layers(dtype, with_bias)
    stream, residual = (draw(seed, tokens, SIZE, dtype=jnp.float32) for seed in (0, 4))
    gate, up = np.einsum("td,pnd->ptn", normed(stream, layers.mlp_norm[2]), wide(layers.gate_up)[2])
    with np.errstate(over="ignore"):
        activation = gate * up / (1 + np.exp(-gate))
    expected = wide(residual) + np.einsum("td,nd->tn", activation, wide(layers.down)[2])
    expected = expected + (wide(layers.down_bias)[2] if with_bias else 0)
    assert difference(mlp(layers, 2, stream, residual, tokens), expected) <= (1e-6 if dtype == jnp.float32 else 4e-3)
    assert difference(mlp(layers, 1, stream, residual, tokens), expected) > 0.1, "another layer"


@DTYPES
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_qkv_is_finished_as_xla_does(tokens: int, with_bias: bool, dtype: Any) -> None:
    layers = qkv_layers(dtype, with_bias)
    x, angles = draw(0, tokens, SIZE, dtype=jnp.float32), rotary_angles(CONFIG, jnp.arange(tokens))
    result = AmxLayerOps().qkv(CONFIG, layers, 1, x, angles, jnp.int32(tokens))
    expected = XlaLayerOps().qkv(CONFIG, layers, 1, x, angles, jnp.int32(tokens))
    assert [a.shape for a in result] == [a.shape for a in expected]
    for a, b in zip(result, expected, strict=True):
        assert difference(a, wide(b)) <= (1e-6 if dtype == jnp.float32 else 0.02)


@DTYPES
@pytest.mark.parametrize("size", [64, 96, 128])
@pytest.mark.parametrize("normed_heads", [(), ("q_norm",), ("q_norm", "k_norm")])
def test_heads_are_normed_and_rotated_as_xla_does(normed_heads: tuple[str, ...], size: int, dtype: Any) -> None:
    """Heads of several pairs of tiles; what is no token's is 0."""
    tokens, count, config = 70, 39, replace(CONFIG, head_dim=size)
    norms = {name: 1 + draw(n, LAYERS, size, dtype=dtype) for n, name in enumerate(normed_heads)}
    layers = replace(qkv_layers(dtype, with_bias=True, size=size), **norms)
    x, angles = draw(0, tokens, SIZE, dtype=jnp.float32), rotary_angles(config, 5 + jnp.arange(tokens))
    result = AmxLayerOps().qkv(config, layers, 1, x, angles, jnp.int32(count))
    expected = XlaLayerOps().qkv(config, layers, 1, x, angles, jnp.int32(count))
    for a, b in zip(result, expected, strict=True):
        assert difference(a[:count], wide(b)[:count]) <= (1e-6 if dtype == jnp.float32 else 0.02)
        assert not np.asarray(a[count:], np.float32).any()


def qkv_layers(dtype: Any, with_bias: bool = False, size: int = 32) -> Layers:
    return layers_of(
        qkv=draw(1, LAYERS, 2, 4, size, SIZE, dtype=dtype),
        qkv_bias=draw(2, LAYERS, 2, 4, size, dtype=dtype) if with_bias else None,
        attention_norm=draw(3, LAYERS, SIZE, dtype=dtype),
    )


@DTYPES
@pytest.mark.parametrize("count", [0, 1, 33, 64, 100])
def test_products_stop_at_the_last_real_token(count: int, dtype: Any) -> None:
    """Real tokens get what they get alone; the stream of the others stays, and NaN in it harms nobody."""
    tokens = 100
    alone, residual = (draw(seed, tokens, SIZE, dtype=jnp.float32) for seed in (0, 4))
    stream = alone.at[count:].set(jnp.nan)
    out = layers_of(out=draw(1, LAYERS, SIZE, 2, 2, 32, dtype=dtype))
    attended = draw(5, tokens, 2, 2, 32, dtype=dtype)
    results = {
        "mlp": [mlp(mlp_layers(dtype), 1, x, residual, n) for x, n in ((alone, tokens), (stream, count))],
        "attn_out": [
            AmxLayerOps().attn_out(CONFIG, out, 1, residual, x, jnp.int32(n))
            for x, n in ((attended, tokens), (attended.at[count:].set(jnp.nan), count))
        ],
    }
    for name, (whole, part) in results.items():
        np.testing.assert_array_equal(part[:count], whole[:count], err_msg=name)
        np.testing.assert_array_equal(part[count:], residual[count:], err_msg=name)
    angles = rotary_angles(CONFIG, jnp.arange(tokens))
    for part in AmxLayerOps().qkv(CONFIG, qkv_layers(dtype), 1, stream, angles, jnp.int32(count)):
        assert np.isfinite(wide(part)).all()


@pytest.mark.parametrize("size", [1e-20, 1e-3, 1.0, 1e3, 1e20])
def test_float32_products_are_as_exact_as_float32_at_any_size(size: float) -> None:
    """Against float64, beside XLA's in float32 and, as a control, products of the same numbers cut to 16 bits."""
    layers = layers_of(out=draw(1, LAYERS, SIZE, 2, 2, 32, dtype=jnp.float32))
    attended, nothing = size * draw(5, 200, 2, 2, 32, dtype=jnp.float32), jnp.zeros((200, SIZE))
    expected = np.einsum("td,nd->tn", wide(attended).reshape(200, -1), wide(layers.out)[0].reshape(SIZE, -1))

    def error(ops: XlaLayerOps, x: jax.Array) -> float:
        return difference(ops.attn_out(CONFIG, layers, 0, nothing, x, jnp.int32(200)), expected)

    assert error(AmxLayerOps(), attended) <= 2 * error(XlaLayerOps(), attended) + 1e-7
    assert error(XlaLayerOps(), attended.astype(jnp.bfloat16)) > 1e-4


def test_sizes_that_are_not_multiples_of_32_are_left_to_xla() -> None:
    x, norm, count = draw(0, 8, SIZE, dtype=jnp.float32), draw(2, LAYERS, SIZE), jnp.int32(8)
    odd = layers_of(gate_up=draw(1, LAYERS, 2, 40, SIZE), mlp_norm=norm, down=draw(3, LAYERS, SIZE, 40))
    activation = AmxLayerOps().gate_up(CONFIG, odd, 1, x, count)
    assert np.array_equal(activation, XlaLayerOps().gate_up(CONFIG, odd, 1, x, count))
    result, expected = (ops.down(CONFIG, odd, 1, x, activation, count) for ops in (AmxLayerOps(), XlaLayerOps()))
    assert np.array_equal(result, expected)
