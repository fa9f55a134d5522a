"""The products of a layer on CPUs with AMX: `native/products.cc`, called through XLA's foreign functions.

Weights are given as they are stacked, with the layer's number, so that none is copied. Sums are float32 until the end:
what goes to the residual stream is never rounded. In float32 a number is three of 16 bits, exactly, and a product six.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from onepass.attention.amx import in_planes
from onepass.models import layers as parts
from onepass.models.config import ModelConfig
from onepass.models.layers import Angles, Hidden
from onepass.models.products import Heads, Layer, XlaProducts
from onepass.models.weights import Layers

MULTIPLE = 32  # terms and results come in so many, and the kernels take tokens so many at a time


@dataclass(frozen=True)
class AmxProducts(XlaProducts):
    """What the kernels do not take is XLA's: sizes that are not in thirty-twos, and 8 bits. An activation is in the
    kernels' order (blocks of tokens, steps of terms, planes, halves, tokens, terms), and only they read it."""

    in_blocks: ClassVar[bool] = False  # the kernels have blocks of their own

    def heads(self, config: ModelConfig, layers: Layers, at: Layer, stream: Hidden, angles: Angles) -> Heads:
        if not _takes(layers.qkv):
            return super().heads(config, layers, at, stream, angles)
        numbers, _ = in_planes(layers.qkv.dtype)
        out = jax.ShapeDtypeStruct((*stream.shape[:2], *layers.qkv.shape[1:-1]), layers.qkv.dtype)
        call = jax.ffi.ffi_call(f"onepass_plain_{numbers}", (out, _space(stream, layers.qkv)))
        fused, _ = call(
            stream, layers.attention_norm, layers.qkv, jnp.int32(at), _bias(layers.qkv_bias),
            eps=np.float32(config.rms_eps),
        )  # fmt: skip
        return parts.finished(config, layers.layer(at), fused, angles)

    def out(self, config: ModelConfig, layers: Layers, at: Layer, stream: Hidden, attended: Array) -> Hidden:
        weight = layers.out.reshape(*layers.out.shape[:2], -1)
        if not _takes(weight):
            return super().out(config, layers, at, stream, attended)
        numbers, _ = in_planes(weight.dtype)
        x = attended.reshape(*attended.shape[:2], -1)
        call = jax.ffi.ffi_call(f"onepass_added_{numbers}", (_like(stream), _space(x, weight)))
        out, _ = call(x, weight, jnp.int32(at), _bias(layers.out_bias), stream)
        return out

    def gated(self, config: ModelConfig, layers: Layers, at: Layer, stream: Hidden) -> Array:
        if not _takes_mlp(layers):
            return super().gated(config, layers, at, stream)
        numbers, planes = in_planes(layers.gate_up.dtype)
        blocks, steps = -(-stream.shape[0] * stream.shape[1] // MULTIPLE), layers.down.shape[-1] // MULTIPLE
        out = jax.ShapeDtypeStruct((blocks, steps, planes, 2, MULTIPLE // 2, MULTIPLE), jnp.bfloat16)
        call = jax.ffi.ffi_call(f"onepass_gated_{numbers}", (out, _space(stream, layers.gate_up)))
        activation, _ = call(stream, layers.mlp_norm, layers.gate_up, jnp.int32(at), eps=np.float32(config.rms_eps))
        return activation

    def down(self, config: ModelConfig, layers: Layers, at: Layer, stream: Hidden, activation: Array) -> Hidden:
        if not _takes_mlp(layers):
            return super().down(config, layers, at, stream, activation)
        numbers, _ = in_planes(layers.down.dtype)
        call = jax.ffi.ffi_call(f"onepass_added_tiled_{numbers}", _like(stream))
        return call(activation, layers.down, jnp.int32(at), _bias(layers.down_bias), stream)


def _takes(stacked: Array) -> bool:
    results = stacked[0].size // stacked.shape[-1]
    return stacked.dtype in (jnp.bfloat16, jnp.float32) and not (stacked.shape[-1] % MULTIPLE or results % MULTIPLE)


def _takes_mlp(layers: Layers) -> bool:
    """Both products or none: the activation between them is theirs."""
    return layers.gate_up_bias is None and _takes(layers.gate_up) and _takes(layers.down)


def _like(stream: Hidden) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(stream.shape, jnp.float32)


def _space(x: Array, weight: Array) -> jax.ShapeDtypeStruct:
    """Memory for tokens in tiles, which begin at a whole line."""
    tokens, (_, planes) = x.shape[0] * x.shape[1], in_planes(weight.dtype)
    return jax.ShapeDtypeStruct((-(-tokens // MULTIPLE) * MULTIPLE * x.shape[2] * 2 * planes + 64,), jnp.uint8)


def _bias(stacked: Array | None) -> Float[Array, "..."]:
    """All layers'; empty where there is none."""
    return jnp.zeros((0,), jnp.float32) if stacked is None else stacked.astype(jnp.float32)
