"""The matrix products of a layer on CPUs with AMX: `csrc/amx/amx_products.cc`, called through XLA's foreign functions.

Weights are given as they are stacked, with the layer's number, so that none is copied. The kernels stop at the step's
last real token. Sums are float32 until the end: what goes to the residual stream is never rounded. In float32 a number
is three of 16 bits, exactly, and a product six.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from onepass.kernels.cpu.attention import DTYPES, TILE
from onepass.models import layers as parts
from onepass.models.config import ModelConfig
from onepass.models.layer_ops import Count, Layer, Qkv, Stream, XlaLayerOps
from onepass.models.layers import Angles, Hidden
from onepass.models.weights import Layers


@dataclass(frozen=True)
class AmxLayerOps(XlaLayerOps):
    """Needs `build.load_amx()`. What the kernels do not take is XLA's: sizes that are not multiples of 32, and 8 bits.
    An activation is in the kernels' order (blocks of tokens, steps of terms, planes, halves, tokens, terms), and only
    they read it."""

    in_blocks: ClassVar[bool] = False  # the kernels have blocks of their own
    token_multiple: ClassVar[int] = TILE

    def qkv(self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, angles: Angles, count: Count) -> Qkv:
        if not _takes(layers.qkv):
            return super().qkv(config, layers, at, stream, angles, count)
        out = jax.ShapeDtypeStruct((stream.shape[0], *layers.qkv.shape[1:-1]), layers.qkv.dtype)
        call = jax.ffi.ffi_call(_target("qkv", layers.qkv), (out, _workspace(stream, layers.qkv)))
        fused, _ = call(
            stream, jnp.int32(count), layers.attention_norm, layers.qkv, jnp.int32(at), _bias(layers.qkv_bias),
            eps=np.float32(config.rms_eps),
        )  # fmt: skip
        return parts.finished(config, layers.layer(at), fused, angles)

    def attn_out(
        self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, attended: Array, count: Count
    ) -> Stream:
        weight = layers.out.reshape(*layers.out.shape[:2], -1)
        if not _takes(weight):
            return super().attn_out(config, layers, at, stream, attended, count)
        x = attended.reshape(attended.shape[0], -1)
        call = jax.ffi.ffi_call(
            _target("add", weight), (_like(stream), _workspace(x, weight)), input_output_aliases={5: 0}
        )
        out, _ = call(x, jnp.int32(count), weight, jnp.int32(at), _bias(layers.out_bias), stream)
        return out

    def gate_up(self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, count: Count) -> Array:
        if not _takes_mlp(layers):
            return super().gate_up(config, layers, at, stream, count)
        blocks, steps = -(-stream.shape[0] // TILE), layers.down.shape[-1] // TILE
        out = jax.ShapeDtypeStruct((blocks, steps, _planes(layers.down), 2, TILE // 2, TILE), jnp.bfloat16)
        call = jax.ffi.ffi_call(_target("gate_up", layers.gate_up), (out, _workspace(stream, layers.gate_up)))
        activation, _ = call(
            stream, jnp.int32(count), layers.mlp_norm, layers.gate_up, jnp.int32(at), eps=np.float32(config.rms_eps)
        )
        return activation

    def down(
        self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, activation: Array, count: Count
    ) -> Stream:
        if not _takes_mlp(layers):
            return super().down(config, layers, at, stream, activation, count)
        call = jax.ffi.ffi_call(_target("add_tiled", layers.down), _like(stream), input_output_aliases={5: 0})
        return call(activation, jnp.int32(count), layers.down, jnp.int32(at), _bias(layers.down_bias), stream)

    def left_to_xla(self, config: ModelConfig, layers: Layers) -> dict[str, str]:
        out = jax.ShapeDtypeStruct((*layers.out.shape[:2], math.prod(layers.out.shape[2:])), layers.out.dtype)
        takes = {"qkv": _takes(layers.qkv), "attn_out": _takes(out), "gate_up": _takes_mlp(layers)}
        takes["down"] = takes["gate_up"]
        why = f"the kernel takes 16 or 32 bits, sizes in multiples of {TILE} and an MLP without a bias before its gate"
        return {name: why for name, taken in takes.items() if not taken}


def _takes(stacked: Array | jax.ShapeDtypeStruct) -> bool:
    results = math.prod(stacked.shape[1:-1])
    return stacked.dtype in DTYPES and not (stacked.shape[-1] % TILE or results % TILE)


def _takes_mlp(layers: Layers) -> bool:
    """Both products or none: the activation between them is theirs."""
    return layers.gate_up_bias is None and _takes(layers.gate_up) and _takes(layers.down)


def _target(operation: str, weight: Array) -> str:
    return f"onepass_amx_{operation}_{DTYPES[weight.dtype]}"


def _planes(weight: Array) -> int:
    """How many numbers of 16 bits each number is."""
    return 3 if weight.dtype == jnp.float32 else 1


def _like(stream: Hidden) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(stream.shape, jnp.float32)


def _workspace(x: Float[Array, "tokens terms"], weight: Array) -> jax.ShapeDtypeStruct:
    """Memory for tokens in tiles, which begin at a whole line."""
    return jax.ShapeDtypeStruct((-(-x.shape[0] // TILE) * TILE * x.shape[1] * 2 * _planes(weight) + 64,), jnp.uint8)


def _bias(stacked: Array | None) -> Float[Array, "..."]:
    """All layers'; empty where there is none."""
    return jnp.zeros((0,), jnp.float32) if stacked is None else stacked.astype(jnp.float32)
