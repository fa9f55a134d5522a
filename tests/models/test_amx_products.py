"""The C++ products equal the same in float32, for any number of tokens, every layer, with and without bias."""

from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onepass.models.amx_products import AmxProducts
from onepass.models.known import known_config
from onepass.models.layers import rms_norm, rotary_angles
from onepass.models.products import XlaProducts
from onepass.models.weights import Layers
from onepass.native import build

needs_amx = pytest.mark.skipif(build.problem() is not None, reason=str(build.problem()))
SIZE, MLP, LAYERS = 96, 160, 3
TOKENS = [1, 16, 31, 32, 33, 200]
CONFIG = replace(known_config("smollm2-135m"), hidden_size=SIZE, num_heads=4, num_kv_heads=2, head_dim=32)


@pytest.fixture(autouse=True)
def _native() -> None:
    if build.problem() is None:
        build.load()


def draw(seed: int, *axes: int, dtype: Any = jnp.bfloat16) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(axes) / 4, dtype)


def layers_of(**given: jax.Array) -> Layers:
    return Layers(**{field.name: given.get(field.name) for field in fields(Layers)})


def wide(a: jax.Array) -> np.ndarray:
    return np.asarray(a, np.float32)


def close(found: Any, right: np.ndarray) -> bool:
    """Within the rounding of one number to 16 bits."""
    return bool(np.allclose(wide(found), right, rtol=2**-7, atol=1e-5))


@needs_amx
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_out_and_down_are_added_to_the_residual_stream_in_float32(tokens: int, with_bias: bool) -> None:
    bias = draw(3, LAYERS, SIZE) if with_bias else None
    layers = layers_of(out=draw(1, LAYERS, SIZE, 2, 2, 32), down=draw(2, LAYERS, SIZE, MLP))
    layers = replace(layers, out_bias=bias, down_bias=bias)
    residual, attended, activation = draw(4, 2, tokens, SIZE, dtype=jnp.float32), draw(5, 2, tokens, 2, 2, 32), None
    activation = draw(6, 2, tokens, MLP)
    for at in range(LAYERS):
        added = 0 if bias is None else wide(bias)[at]
        out = AmxProducts().out(CONFIG, layers, jnp.int32(at), residual, attended)
        right = np.einsum("rtd,nd->rtn", wide(attended).reshape(2, tokens, -1), wide(layers.out)[at].reshape(SIZE, -1))
        assert np.allclose(out, wide(residual) + right + added, atol=1e-5)
        down = AmxProducts().down(CONFIG, layers, at, residual, activation)
        right = np.einsum("rtd,nd->rtn", wide(activation), wide(layers.down)[at])
        assert np.allclose(down, wide(residual) + right + added, atol=1e-5)


@needs_amx
@pytest.mark.parametrize("tokens", TOKENS)
def test_gate_and_up_with_activation(tokens: int) -> None:
    stream, norm = draw(0, 1, tokens, SIZE, dtype=jnp.float32), 8 * draw(2, LAYERS, SIZE)
    layers = layers_of(gate_up=4 * draw(1, LAYERS, 2, MLP, SIZE), mlp_norm=norm)
    x = rms_norm(stream, norm[2], CONFIG.rms_eps)
    gate, up = np.einsum("rtd,pnd->prtn", wide(x), wide(layers.gate_up)[2])
    with np.errstate(over="ignore"):
        right = gate * up / (1 + np.exp(-gate))
    assert close(AmxProducts().gated(CONFIG, layers, 2, stream), right)
    assert not close(AmxProducts().gated(CONFIG, layers, 1, stream), right), "another layer"


@needs_amx
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_heads_are_finished_as_xla_does(tokens: int, with_bias: bool) -> None:
    layers = layers_of(qkv=draw(1, LAYERS, 2, 4, 32, SIZE), attention_norm=draw(3, LAYERS, SIZE))
    layers = replace(layers, qkv_bias=draw(2, LAYERS, 2, 4, 32) if with_bias else None)
    x, angles = draw(0, 1, tokens, SIZE), rotary_angles(CONFIG, jnp.arange(tokens)[None])
    found = AmxProducts().heads(CONFIG, layers, 1, x, angles)
    right = XlaProducts().heads(CONFIG, layers, 1, x, angles)
    assert [a.shape for a in found] == [a.shape for a in right]
    for a, b in zip(found, right, strict=True):
        assert np.abs(wide(a) - wide(b)).max() <= 0.02 * np.abs(wide(b)).max()


def test_sizes_that_are_not_in_thirty_twos_and_float32_are_left_to_xla() -> None:
    x = draw(0, 1, 8, SIZE)
    odd = layers_of(gate_up=draw(1, LAYERS, 2, 40, SIZE), mlp_norm=draw(2, LAYERS, SIZE))
    assert np.array_equal(AmxProducts().gated(CONFIG, odd, 1, x), XlaProducts().gated(CONFIG, odd, 1, x))
    exact = jax.tree.map(lambda a: a.astype(jnp.float32), replace(odd, gate_up=draw(1, LAYERS, 2, MLP, SIZE)))
    assert np.array_equal(AmxProducts().gated(CONFIG, exact, 1, x), XlaProducts().gated(CONFIG, exact, 1, x))
