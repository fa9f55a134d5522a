"""Who computes the matrix products of a layer, with the norms before them: XLA (here), or kernels with fused epilogues.

Chosen at load time with the attention. What flows from layer to layer is theirs, too: the residual stream, and with it
whatever the next product wants to know of it. `count` is how many of a step's tokens are real, the first ones: kernels
stop there, and what they leave for the others is arbitrary: no real token ever reads it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from onepass.models import layers as parts
from onepass.models.config import ModelConfig
from onepass.models.layers import Angles, Hidden
from onepass.models.weights import Layers, Weights

Layer = int | Int[Array, ""]
Count = Int[Array, ""]
# The residual stream as these operations carry it; every array is [tokens, ...].
Stream = Any
Qkv = tuple[Array, Array, Array]
OPERATIONS = ("qkv", "attn_out", "gate_up", "down")


class LayerOps(Protocol):
    @property
    def in_blocks(self) -> bool:
        """Whether what follows attention is best done, on a CPU, for a block of tokens after another."""
        ...

    @property
    def token_multiple(self) -> int:
        """A step's tokens come in so many: every rung is a multiple."""
        ...

    def compiler_options(self, tokens: int) -> Mapping[str, str]:
        """What XLA is to be told of programs of so many tokens with these operations."""
        ...

    def begin(self, config: ModelConfig, layers: Layers, x: Hidden, count: Count) -> Stream:
        """The stream before the first layer, x in float32."""
        ...

    def end(self, stream: Stream) -> Hidden: ...

    def qkv(self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, angles: Angles, count: Count) -> Qkv:
        """q [tokens kv_heads group head_dim]; k and v [tokens kv_heads head_dim]; q and k rotated."""
        ...

    def attn_out(
        self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, attended: Array, count: Count
    ) -> Stream:
        """The heads' results brought together, and added."""
        ...

    def gate_up(
        self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, count: Count
    ) -> Float[Array, "tokens mlp"]:
        """silu(gate) · up"""
        ...

    def down(
        self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, activation: Array, count: Count
    ) -> Stream:
        """The MLP's result, added."""
        ...

    def finishes(self, config: ModelConfig, layers: Layers) -> bool:
        """Whether these operations compute the last layer, too, whose read-outs are fewer than the step's tokens; XLA
        does otherwise."""
        ...

    def over_vocabulary(
        self, config: ModelConfig, weights: Weights, hidden: Float[Array, "readouts hidden"], count: Count
    ) -> Float[Array, "readouts 3"] | None:
        """What `decoder.over_vocabulary` is of the first `count` read-outs; None: XLA computes it."""
        ...

    def projects_all(self, layers: Layers, tokens: int) -> bool:
        """Whether `qkv` of so many tokens takes less time than k and v of these and q of those that are read out."""
        ...

    def left_to_xla(self, config: ModelConfig, layers: Layers) -> dict[str, str]:
        """Which of the four operations XLA computes because the backend's kernel does not take their shapes, and why.
        `layers` may be shapes."""
        ...


@dataclass(frozen=True)
class XlaLayerOps:
    """The stream is x alone."""

    in_blocks: ClassVar[bool] = True
    token_multiple: ClassVar[int] = 1

    def compiler_options(self, tokens: int) -> Mapping[str, str]:
        return {}

    def begin(self, config: ModelConfig, layers: Layers, x: Hidden, count: Count) -> Stream:
        return x

    def end(self, stream: Stream) -> Hidden:
        return jnp.asarray(stream)

    def qkv(self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, angles: Angles, count: Count) -> Qkv:
        layer = layers.layer(at)
        return parts.project_qkv(config, layer, parts.rms_norm(stream, layer.attention_norm, config.rms_eps), angles)

    def attn_out(
        self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, attended: Array, count: Count
    ) -> Stream:
        return stream + parts.project_out(layers.layer(at), attended, config.split).astype(stream.dtype)

    def gate_up(
        self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, count: Count
    ) -> Float[Array, "tokens mlp"]:
        layer = layers.layer(at)
        return parts.gate_up(layer, parts.rms_norm(stream, layer.mlp_norm, config.rms_eps))

    def down(
        self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, activation: Array, count: Count
    ) -> Stream:
        return stream + parts.project_down(layers.layer(at), activation, config.split).astype(stream.dtype)

    def finishes(self, config: ModelConfig, layers: Layers) -> bool:
        return False

    def over_vocabulary(
        self, config: ModelConfig, weights: Weights, hidden: Float[Array, "readouts hidden"], count: Count
    ) -> Float[Array, "readouts 3"] | None:
        return None

    def projects_all(self, layers: Layers, tokens: int) -> bool:
        return False

    def left_to_xla(self, config: ModelConfig, layers: Layers) -> dict[str, str]:
        return {}


@dataclass(frozen=True)
class XlaInstead(XlaLayerOps):
    """XLA in place of a backend whose kernels take nothing of this model, and why."""

    why: str

    def left_to_xla(self, config: ModelConfig, layers: Layers) -> dict[str, str]:
        return dict.fromkeys(OPERATIONS, self.why)
