"""The C++ products equal the same in float64, for any number of tokens, every layer, with and without bias: in bf16 to
the rounding of one number, in float32 to that of float32."""

from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onepass.models.amx_products import AmxProducts
from onepass.models.known import known_config
from onepass.models.layers import rotary_angles
from onepass.models.products import XlaProducts
from onepass.models.weights import Layers
from onepass.native import build

needs_amx = pytest.mark.skipif(build.problem() is not None, reason=str(build.problem()))
SIZE, MLP, LAYERS = 96, 1600, 3
TOKENS = [1, 16, 31, 32, 33, 200]
CONFIG = replace(known_config("smollm2-135m"), hidden_size=SIZE, num_heads=4, num_kv_heads=2, head_dim=32)
DTYPES = pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32], ids=["bf16", "f32"])


@pytest.fixture(autouse=True)
def _native() -> None:
    if build.problem() is None:
        build.load()


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


def difference(found: Any, right: np.ndarray) -> float:
    """The largest, by the largest of what is right."""
    return float(np.abs(wide(found) - right).max() / np.abs(right).max())


@needs_amx
@DTYPES
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_out_is_added_to_the_residual_stream_in_float32(tokens: int, with_bias: bool, dtype: Any) -> None:
    bias = draw(3, LAYERS, SIZE, dtype=dtype) if with_bias else None
    layers = layers_of(out=draw(1, LAYERS, SIZE, 2, 2, 32, dtype=dtype), out_bias=bias)
    residual, attended = draw(4, 2, tokens, SIZE, dtype=jnp.float32), draw(5, 2, tokens, 2, 2, 32, dtype=dtype)
    for at in range(LAYERS):
        added = 0 if bias is None else wide(bias)[at]
        right = np.einsum("rtd,nd->rtn", wide(attended).reshape(2, tokens, -1), wide(layers.out)[at].reshape(SIZE, -1))
        found = AmxProducts().out(CONFIG, layers, jnp.int32(at), residual, attended)
        assert difference(found, wide(residual) + right + added) <= 1e-6


@needs_amx
@DTYPES
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_mlp_with_its_activation_is_added_to_the_stream(tokens: int, with_bias: bool, dtype: Any) -> None:
    """More terms than are added up at once, so that sums of several chunks meet in memory."""
    stream, norm = draw(0, 2, tokens, SIZE, dtype=jnp.float32), 8 * draw(2, LAYERS, SIZE, dtype=dtype)
    layers = layers_of(
        gate_up=4 * draw(1, LAYERS, 2, MLP, SIZE, dtype=dtype),
        mlp_norm=norm,
        down=draw(3, LAYERS, SIZE, MLP, dtype=dtype),
        down_bias=draw(5, LAYERS, SIZE, dtype=dtype) if with_bias else None,
    )
    residual = draw(4, 2, tokens, SIZE, dtype=jnp.float32)
    gate, up = np.einsum("rtd,pnd->prtn", normed(stream, norm[2]), wide(layers.gate_up)[2])
    with np.errstate(over="ignore"):
        activation = gate * up / (1 + np.exp(-gate))
    right = wide(residual) + np.einsum("rtd,nd->rtn", activation, wide(layers.down)[2])
    right = right + (wide(layers.down_bias)[2] if with_bias else 0)

    def found(at: int) -> jax.Array:
        activation = AmxProducts().gated(CONFIG, layers, at, stream)
        return AmxProducts().down(CONFIG, layers, jnp.int32(at), residual, activation)

    assert difference(found(2), right) <= (1e-6 if dtype == jnp.float32 else 4e-3)
    assert difference(found(1), right) > 0.1, "another layer"


@needs_amx
@DTYPES
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_heads_are_finished_as_xla_does(tokens: int, with_bias: bool, dtype: Any) -> None:
    layers = layers_of(
        qkv=draw(1, LAYERS, 2, 4, 32, SIZE, dtype=dtype), attention_norm=draw(3, LAYERS, SIZE, dtype=dtype)
    )
    layers = replace(layers, qkv_bias=draw(2, LAYERS, 2, 4, 32, dtype=dtype) if with_bias else None)
    x, angles = draw(0, 1, tokens, SIZE, dtype=jnp.float32), rotary_angles(CONFIG, jnp.arange(tokens)[None])
    found = AmxProducts().heads(CONFIG, layers, 1, x, angles)
    right = XlaProducts().heads(CONFIG, layers, 1, x, angles)
    assert [a.shape for a in found] == [a.shape for a in right]
    for a, b in zip(found, right, strict=True):
        assert difference(a, wide(b)) <= (1e-6 if dtype == jnp.float32 else 0.02)


@needs_amx
@pytest.mark.parametrize("size", [1e-20, 1e-3, 1.0, 1e3, 1e20])
def test_float32_products_are_as_exact_as_float32_at_any_size(size: float) -> None:
    """Against float64, beside XLA's in float32 and, as a control, products of the same numbers cut to 16 bits."""
    layers = layers_of(out=draw(1, LAYERS, SIZE, 2, 2, 32, dtype=jnp.float32))
    attended, nothing = size * draw(5, 1, 200, 2, 2, 32, dtype=jnp.float32), jnp.zeros((1, 200, SIZE))
    right = np.einsum("rtd,nd->rtn", wide(attended).reshape(1, 200, -1), wide(layers.out)[0].reshape(SIZE, -1))
    ours = difference(AmxProducts().out(CONFIG, layers, 0, nothing, attended), right)
    xlas = difference(XlaProducts().out(CONFIG, layers, 0, nothing, attended), right)
    cut = difference(XlaProducts().out(CONFIG, layers, 0, nothing, attended.astype(jnp.bfloat16)), right)
    assert ours <= 2 * xlas + 1e-7
    assert cut > 1e-4


def test_sizes_that_are_not_in_thirty_twos_are_left_to_xla() -> None:
    x, norm = draw(0, 1, 8, SIZE, dtype=jnp.float32), draw(2, LAYERS, SIZE)
    odd = layers_of(gate_up=draw(1, LAYERS, 2, 40, SIZE), mlp_norm=norm, down=draw(3, LAYERS, SIZE, 40))
    activation = AmxProducts().gated(CONFIG, odd, 1, x)
    assert np.array_equal(activation, XlaProducts().gated(CONFIG, odd, 1, x))
    found, right = (p.down(CONFIG, odd, 1, x, activation) for p in (AmxProducts(), XlaProducts()))
    assert np.array_equal(found, right)
