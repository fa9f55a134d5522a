"""Who computes the products of a layer: XLA, or kernels with the work that follows at their end.

Chosen at load time with the attention. A shape that a kernel does not take is XLA's: small rows, heads of 64.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from onepass.models import layers as parts
from onepass.models.config import ModelConfig
from onepass.models.hopper_products import Heads, gated_product, gated_takes, heads_product, heads_take
from onepass.models.layers import Angles, Hidden
from onepass.models.weights import Layers

Layer = int | Int[Array, ""]


class Products(Protocol):
    def heads(
        self, config: ModelConfig, layers: Layers, at: Layer, x: Hidden, angles: Angles
    ) -> tuple[Array, Array, Array]:
        """q [rows tokens kv_heads group head_dim]; k and v [rows tokens kv_heads head_dim]; q and k rotated."""
        ...

    def gated(self, layers: Layers, at: Layer, x: Hidden) -> Float[Array, "rows tokens mlp"]:
        """silu(gate) · up"""
        ...

    def out(self, config: ModelConfig, layers: Layers, at: Layer, residual: Hidden, attended: Array) -> Hidden:
        """residual + the heads' results brought together"""
        ...

    def down(self, config: ModelConfig, layers: Layers, at: Layer, residual: Hidden, activation: Array) -> Hidden:
        """residual + the MLP's result"""
        ...

    @property
    def in_blocks(self) -> bool:
        """Whether what follows attention is best done, on a CPU, for a block of tokens after another."""
        ...


@dataclass(frozen=True)
class XlaProducts:
    in_blocks: ClassVar[bool] = True

    def heads(
        self, config: ModelConfig, layers: Layers, at: Layer, x: Hidden, angles: Angles
    ) -> tuple[Array, Array, Array]:
        return parts.project_qkv(config, layers.layer(at), x, angles)

    def gated(self, layers: Layers, at: Layer, x: Hidden) -> Float[Array, "rows tokens mlp"]:
        return parts.gate_up(layers.layer(at), x)

    def out(self, config: ModelConfig, layers: Layers, at: Layer, residual: Hidden, attended: Array) -> Hidden:
        return residual + parts.project_out(layers.layer(at), attended, config.split)

    def down(self, config: ModelConfig, layers: Layers, at: Layer, residual: Hidden, activation: Array) -> Hidden:
        return residual + parts.project_down(layers.layer(at), activation, config.split)


@dataclass(frozen=True)
class HopperProducts(XlaProducts):
    multiprocessors: int

    def heads(
        self, config: ModelConfig, layers: Layers, at: Layer, x: Hidden, angles: Angles
    ) -> tuple[Array, Array, Array]:
        rows, tokens, _ = x.shape
        if not heads_take(rows * tokens, layers.qkv):
            return super().heads(config, layers, at, x, angles)
        cos, sin = (a.reshape(rows * tokens, -1) for a in angles)
        ends = Heads(cos, sin, layers.q_norm, layers.k_norm, layers.qkv_bias, config.rms_eps)
        q, k, v = heads_product(_flat(x), layers.qkv, jnp.int32(at), ends, self.multiprocessors)
        kv_heads = k.shape[1]
        q = q.reshape(rows, tokens, kv_heads, -1, config.head_dim)
        k, v = (a.reshape(rows, tokens, kv_heads, config.head_dim) for a in (k, v))
        return q, k, v

    def gated(self, layers: Layers, at: Layer, x: Hidden) -> Float[Array, "rows tokens mlp"]:
        rows, tokens, _ = x.shape
        if layers.gate_up_bias is not None or not gated_takes(rows * tokens, layers.gate_up):
            return super().gated(layers, at, x)
        out = gated_product(_flat(x), layers.gate_up, jnp.int32(at), self.multiprocessors)
        return out.reshape(rows, tokens, -1)


def _flat(x: Hidden) -> Float[Array, "all_tokens hidden"]:
    return x.reshape(-1, x.shape[-1])
