"""The products of a layer on Hopper GPUs: `hopper_kernels`, in 16 bits, or in 8 where the weights are (`quantize`).

With the stream goes what the next norm's product is fed: x in few bits, and the squares of x, by which its sums are
divided. In 16 bits `ready` is x times the norm's weight, not yet divided by its size. In 8 bits it is the normed row,
whose entries are never above the root of their number: a fixed factor fills the range, and no row needs a scale.
What a kernel does not take is XLA's: heads of 64, sizes that are not whole tiles, a model spread over devices.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from onepass.models.config import ModelConfig
from onepass.models.hopper_heads import Heads, heads_product, heads_take
from onepass.models.hopper_kernels import Added, added_product, added_takes, gated_product, gated_takes, square_parts
from onepass.models.hopper_sums import Scaled
from onepass.models.hopper_tiles import TOKENS
from onepass.models.layers import Angles, Hidden
from onepass.models.products import Heads as QKV
from onepass.models.products import Layer, XlaProducts
from onepass.models.quantize import EIGHT_BIT, unit
from onepass.models.weights import Layers
from onepass.parallel.split import WHOLE


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ready:
    """The stream, and what the next norm's product is fed."""

    x: Hidden
    ready: Float[Array, "rows tokens hidden"]
    squares: Float[Array, "rows tokens parts"]


@dataclass(frozen=True)
class HopperProducts(XlaProducts):
    multiprocessors: int
    in_blocks: ClassVar[bool] = False
    multiple: ClassVar[int] = TOKENS

    def enter(self, config: ModelConfig, layers: Layers, x: Hidden) -> Ready:
        squares = _squares(x, square_parts(x.shape[0] * x.shape[1], x.shape[2], self.multiprocessors))
        return Ready(x, _fed(config, layers, x, squares, layers.attention_norm[0]), squares)

    def leave(self, stream: Ready) -> Hidden:
        return stream.x

    def heads(self, config: ModelConfig, layers: Layers, at: Layer, stream: Ready, angles: Angles) -> QKV:
        rows, tokens, _ = stream.x.shape
        if not heads_take(rows * tokens, layers.qkv):
            return super().heads(config, layers, at, stream.x, angles)
        cos, sin = (a.reshape(rows * tokens, -1) for a in angles)
        ends = Heads(cos, sin, layers.q_norm, layers.k_norm, layers.qkv_bias, config.rms_eps)
        scaled = _scaled(config, stream, layers.qkv_scale)
        q, k, v = heads_product(scaled, layers.qkv, jnp.int32(at), ends, self.multiprocessors)
        kv_heads = k.shape[1]
        q = q.reshape(rows, tokens, kv_heads, -1, config.head_dim)
        k, v = (a.reshape(rows, tokens, kv_heads, config.head_dim) for a in (k, v))
        return q, k, v

    def gated(self, config: ModelConfig, layers: Layers, at: Layer, stream: Ready) -> Float[Array, "rows tokens mlp"]:
        rows, tokens, _ = stream.x.shape
        if layers.gate_up_bias is not None or not gated_takes(rows * tokens, layers.gate_up):
            return super().gated(config, layers, at, stream.x)
        scaled = _scaled(config, stream, layers.gate_up_scale)
        out = gated_product(scaled, layers.gate_up, jnp.int32(at), self.multiprocessors)
        return out.reshape(rows, tokens, -1)

    def out(self, config: ModelConfig, layers: Layers, at: Layer, stream: Ready, attended: Array) -> Ready:
        weights = layers.out.reshape(*layers.out.shape[:2], -1)
        term = _Term(attended, weights, layers.out_scale, layers.out_bias, layers.mlp_norm, 0, at)
        if not self._adds(config, stream, weights):
            return term.without_kernel(config, layers, stream, super().out(config, layers, at, stream.x, attended))
        return self._added(config, layers, stream, term)

    def down(self, config: ModelConfig, layers: Layers, at: Layer, stream: Ready, activation: Array) -> Ready:
        """The last layer never comes here: the norm is that of the next one."""
        term = _Term(activation, layers.down, layers.down_scale, layers.down_bias, layers.attention_norm, 1, at)
        if not self._adds(config, stream, layers.down):
            return term.without_kernel(config, layers, stream, super().down(config, layers, at, stream.x, activation))
        return self._added(config, layers, stream, term)

    def _adds(self, config: ModelConfig, stream: Ready, weights: Array) -> bool:
        return config.split == WHOLE and added_takes(_tokens(stream), weights)

    def _added(self, config: ModelConfig, layers: Layers, stream: Ready, term: "_Term") -> Ready:
        added = Added(_flat(stream.x), term.bias, None if layers.in_eight_bits else term.norms, term.on)
        scaled = Scaled(term.values.reshape(_tokens(stream), -1).astype(term.weights.dtype), scales=term.scales)
        x, ready, squares = added_product(scaled, term.weights, jnp.int32(term.at), added, self.multiprocessors)
        x, squares = (a.reshape(*stream.x.shape[:2], -1) for a in (x, squares))
        if ready is None:
            return Ready(x, _fed(config, layers, x, squares, term.norm), squares)
        return Ready(x, ready.reshape(x.shape), squares)


@dataclass(frozen=True)
class _Term:
    """What is added to the stream: values times one layer's weights; and the norms that follow, by layer."""

    values: Array
    weights: Array
    scales: Array | None
    bias: Array | None
    norms: Array
    on: int  # that norm is so many layers on
    at: Layer

    @property
    def norm(self) -> Array:
        return jax.lax.dynamic_index_in_dim(self.norms, self.at + self.on, keepdims=False)

    def without_kernel(self, config: ModelConfig, layers: Layers, before: Ready, x: Hidden) -> Ready:
        squares = _squares(x, before.squares.shape[-1])
        return Ready(x, _fed(config, layers, x, squares, self.norm), squares)


def _fed(config: ModelConfig, layers: Layers, x: Hidden, squares: Array, norm: Array) -> Array:
    """What the product after the norm is given of x."""
    if not layers.in_eight_bits:
        return (x * norm.astype(jnp.float32)).astype(norm.dtype)
    size = jax.lax.rsqrt(squares.sum(axis=-1, keepdims=True) / x.shape[-1] + config.rms_eps)
    return (x * (size * unit(x.shape[-1]))).astype(EIGHT_BIT)  # the norm's weight is in the product's


def _scaled(config: ModelConfig, stream: Ready, scales: Array | None) -> Scaled:
    if scales is None:
        return Scaled(_flat(stream.ready), _flat(stream.squares), config.rms_eps)
    return Scaled(_flat(stream.ready), scales=scales, factor=1 / unit(stream.x.shape[-1]))


def _squares(x: Hidden, count: int) -> Array:
    """In so many parts, as the kernels make them; all in the first."""
    return jnp.zeros((*x.shape[:2], count), jnp.float32).at[..., 0].set((x * x).sum(axis=-1))


def _tokens(stream: Ready) -> int:
    return stream.x.shape[0] * stream.x.shape[1]


def _flat(a: Float[Array, "rows tokens size"]) -> Float[Array, "all_tokens size"]:
    return a.reshape(-1, a.shape[-1])
