"""Who computes the products of a layer, with the norms before them: XLA (here), or kernels with more work at their end.

Chosen at load time with the attention. What flows from layer to layer is theirs, too: the residual stream, and with it
whatever the next product wants to know of it.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from onepass.models import layers as parts
from onepass.models.config import ModelConfig
from onepass.models.layers import Angles, Hidden
from onepass.models.weights import Layers

Layer = int | Int[Array, ""]
# The residual stream as these products carry it; every array is [rows, tokens, ...].
Stream = Any
Heads = tuple[Array, Array, Array]


class Products(Protocol):
    @property
    def in_blocks(self) -> bool:
        """Whether what follows attention is best done, on a CPU, for a block of tokens after another."""
        ...

    @property
    def multiple(self) -> int:
        """Tokens of all rows come in so many; the decoder pads."""
        ...

    def enter(self, config: ModelConfig, layers: Layers, x: Hidden) -> Stream:
        """The stream before the first layer, x in float32."""
        ...

    def leave(self, stream: Stream) -> Hidden: ...

    def heads(self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, angles: Angles) -> Heads:
        """q [rows tokens kv_heads group head_dim]; k and v [rows tokens kv_heads head_dim]; q and k rotated."""
        ...

    def out(self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, attended: Array) -> Stream:
        """The heads' results brought together, and added."""
        ...

    def gated(self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream) -> Float[Array, "rows tokens mlp"]:
        """silu(gate) · up"""
        ...

    def down(self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, activation: Array) -> Stream:
        """The MLP's result, added."""
        ...


@dataclass(frozen=True)
class XlaProducts:
    """The stream is x alone."""

    in_blocks: ClassVar[bool] = True
    multiple: ClassVar[int] = 1

    def enter(self, config: ModelConfig, layers: Layers, x: Hidden) -> Stream:
        return x

    def leave(self, stream: Stream) -> Hidden:
        return jnp.asarray(stream)

    def heads(self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, angles: Angles) -> Heads:
        layer = layers.layer(at)
        return parts.project_qkv(config, layer, parts.rms_norm(stream, layer.attention_norm, config.rms_eps), angles)

    def out(self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, attended: Array) -> Stream:
        return stream + parts.project_out(layers.layer(at), attended, config.split)

    def gated(self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream) -> Float[Array, "rows tokens mlp"]:
        layer = layers.layer(at)
        return parts.gate_up(layer, parts.rms_norm(stream, layer.mlp_norm, config.rms_eps))

    def down(self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, activation: Array) -> Stream:
        return stream + parts.project_down(layers.layer(at), activation, config.split)
