"""The products of a layer on CPUs with AMX: `native/products.cc`, called through XLA's foreign functions.

Weights are given as they are stacked, with the layer's number, so that none is copied. Sums are float32 until the end:
what goes to the residual stream is never rounded.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from onepass.models import layers as parts
from onepass.models.config import ModelConfig
from onepass.models.layers import Angles, Hidden
from onepass.models.products import Heads, Layer, XlaProducts
from onepass.models.weights import Layers

MULTIPLE = 32  # terms and results come in so many


@dataclass(frozen=True)
class AmxProducts(XlaProducts):
    """What the kernels do not take is XLA's: sizes that are not in thirty-twos."""

    in_blocks: ClassVar[bool] = False  # the kernels have blocks of their own

    def heads(self, config: ModelConfig, layers: Layers, at: Layer, stream: Hidden, angles: Angles) -> Heads:
        x = parts.rms_norm(stream, layers.layer(at).attention_norm, config.rms_eps)
        if not _takes(x, layers.qkv):
            return super().heads(config, layers, at, stream, angles)
        results = layers.qkv.shape[1:-1]
        out = jax.ShapeDtypeStruct((*x.shape[:2], *results), x.dtype)
        fused = jax.ffi.ffi_call("onepass_plain", out)(x, layers.qkv, jnp.int32(at), _bias(layers.qkv_bias))
        return parts.finished(config, layers.layer(at), fused, angles)

    def gated(self, config: ModelConfig, layers: Layers, at: Layer, stream: Hidden) -> Float[Array, "rows tokens mlp"]:
        x = parts.rms_norm(stream, layers.layer(at).mlp_norm, config.rms_eps)
        if layers.gate_up_bias is not None or not _takes(x, layers.gate_up):
            return super().gated(config, layers, at, stream)
        out = jax.ShapeDtypeStruct((*x.shape[:2], layers.gate_up.shape[2]), x.dtype)
        return jax.ffi.ffi_call("onepass_gated", out)(x, layers.gate_up, jnp.int32(at))

    def out(self, config: ModelConfig, layers: Layers, at: Layer, stream: Hidden, attended: Array) -> Hidden:
        x = attended.reshape(*attended.shape[:2], -1)
        if not _takes(x, layers.out.reshape(*layers.out.shape[:2], -1)):
            return super().out(config, layers, at, stream, attended)
        return _added(x, layers.out, at, layers.out_bias, stream)

    def down(self, config: ModelConfig, layers: Layers, at: Layer, stream: Hidden, activation: Array) -> Hidden:
        if not _takes(activation, layers.down):
            return super().down(config, layers, at, stream, activation)
        return _added(activation, layers.down, at, layers.down_bias, stream)


def _added(x: Array, weight: Array, at: Layer, bias: Array | None, residual: Hidden) -> Hidden:
    out = jax.ShapeDtypeStruct(residual.shape, jnp.float32)
    return jax.ffi.ffi_call("onepass_added", out)(x, weight, jnp.int32(at), _bias(bias), residual)


def _takes(x: Array, stacked: Array) -> bool:
    results = stacked[0].size // stacked.shape[-1]
    sixteen_bit = x.dtype == stacked.dtype == jnp.bfloat16
    return sixteen_bit and not (stacked.shape[-1] % MULTIPLE or results % MULTIPLE)


def _bias(stacked: Array | None) -> Float[Array, "..."]:
    """All layers'; empty where there is none."""
    return jnp.zeros((0,), jnp.float32) if stacked is None else stacked.astype(jnp.float32)
