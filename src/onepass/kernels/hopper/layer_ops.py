"""The matrix products of a layer on Hopper GPUs, `qkv`, `gate_up` and `residual`: in 16 bits, or in 8 (`quantize`).

With the stream goes what the next norm's product is fed: x in few bits, and the squares of x, by which its sums are
divided. In 16 bits `ready` is x times the norm's weight, not yet divided by its size. In 8 bits it is the normed row,
whose entries are never above the root of their number: a fixed factor fills the range, and no row needs a scale.
What a kernel does not take is XLA's: heads of 64, sizes that are not whole tiles, a model spread over devices.

Kernels stop at `count`, at the end of a tile of tokens. Rows are independent: what lies beyond is as the memory was,
may be NaN, and reaches no real token.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from onepass.kernels.hopper.epilogue import GemmInput
from onepass.kernels.hopper.gate_up import gate_up_product, takes_gate_up
from onepass.kernels.hopper.qkv import QkvEpilogue, qkv_product, takes_qkv
from onepass.kernels.hopper.residual import ResidualEpilogue, residual_product, square_parts, takes_residual
from onepass.kernels.hopper.tiles import FEW_TOKENS, TOGETHER, TOKENS
from onepass.models.config import ModelConfig
from onepass.models.layer_ops import Count, Layer, Qkv, XlaLayerOps
from onepass.models.layers import Angles, Hidden
from onepass.models.quantize import EIGHT_BIT, unit
from onepass.models.weights import Layers
from onepass.parallel.split import WHOLE

_WEIGHT = {"attn_out": "out", "down": "down"}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stream:
    """The residual stream, and what the next norm's product is fed."""

    x: Hidden
    ready: Float[Array, "tokens hidden"]
    squares: Float[Array, "parts tokens"]


@dataclass(frozen=True)
class HopperLayerOps(XlaLayerOps):
    multiprocessors: int
    interpret: Any = False
    in_blocks: ClassVar[bool] = False
    token_multiple: ClassVar[int] = TOKENS

    def compiler_options(self, tokens: int) -> Mapping[str, str]:
        """In small steps our kernels are no part of CUDA graphs: within one they begin only when the one ahead has
        ended. Launching them one by one takes the host a millisecond more, which a large step has no use for."""
        return {"xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT"} if tokens <= FEW_TOKENS else {}

    def begin(self, config: ModelConfig, layers: Layers, x: Hidden, count: Count) -> Stream:
        squares = _squares(x, square_parts(x.shape[0], x.shape[1], self.multiprocessors))
        return Stream(x, _fed(config, layers, x, squares, layers.attention_norm[0]), squares)

    def end(self, stream: Stream) -> Hidden:
        return stream.x

    def qkv(self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, angles: Angles, count: Count) -> Qkv:
        tokens = stream.x.shape[0]
        if not takes_qkv(tokens, layers.qkv):
            return super().qkv(config, layers, at, stream.x, angles, count)
        ends = QkvEpilogue(*angles, layers.q_norm, layers.k_norm, layers.qkv_bias, config.rms_eps)
        given = _normed(config, stream, layers.qkv_scale, count)
        q, k, v = qkv_product(given, layers.qkv, jnp.int32(at), ends, self.multiprocessors, self.interpret)
        return q.reshape(tokens, k.shape[1], -1, config.head_dim), k, v

    def gate_up(
        self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, count: Count
    ) -> Float[Array, "tokens mlp"]:
        if layers.gate_up_bias is not None or not takes_gate_up(stream.x.shape[0], layers.gate_up):
            return super().gate_up(config, layers, at, stream.x, count)
        given = _normed(config, stream, layers.gate_up_scale, count)
        return gate_up_product(given, layers.gate_up, jnp.int32(at), self.multiprocessors, self.interpret)

    def attn_out(
        self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, attended: Array, count: Count
    ) -> Stream:
        weights = layers.out.reshape(*layers.out.shape[:2], -1)
        term = _Term(attended, weights, layers.out_scale, layers.out_bias, layers.mlp_norm, 0, at)
        if not self._adds(config, stream, weights):
            x = super().attn_out(config, layers, at, stream.x, attended, count)
            return term.without_kernel(config, layers, stream, x)
        return self._added(config, layers, stream, term, count)

    def down(
        self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, activation: Array, count: Count
    ) -> Stream:
        """The norm that follows is that of the next layer; after the last, only x counts."""
        term = _Term(activation, layers.down, layers.down_scale, layers.down_bias, layers.attention_norm, 1, at)
        if not self._adds(config, stream, layers.down):
            x = super().down(config, layers, at, stream.x, activation, count)
            return term.without_kernel(config, layers, stream, x)
        return self._added(config, layers, stream, term, count)

    def projects_all(self, layers: Layers, tokens: int) -> bool:
        """XLA first copies the weights of k, v and q apart, and launches ten kernels more. In 8 bits the last layer's
        activations are not rounded, in steps of any size."""
        return tokens <= FEW_TOKENS and takes_qkv(tokens, layers.qkv) and not layers.in_eight_bits

    def left_to_xla(self, config: ModelConfig, layers: Layers) -> dict[str, str]:
        """Of a step whose tiles of tokens come in pairs, as all but the smallest do: the weights' sizes decide."""
        tokens, out = TOGETHER * TOKENS, layers.out
        reasons = {}
        if not takes_qkv(tokens, layers.qkv):
            reasons["qkv"] = f"the kernel takes pairs of heads of 128; this model's are {config.head_dim}"
        if layers.gate_up_bias is not None:
            reasons["gate_up"] = "the kernel adds no bias"
        elif not takes_gate_up(tokens, layers.gate_up):
            reasons["gate_up"] = _not_tiles(layers.gate_up.shape[2:])
        matrices = {"attn_out": (out.shape[0], out.shape[1], math.prod(out.shape[2:])), "down": layers.down.shape}
        for name, shape in matrices.items():
            if config.split != WHOLE:
                reasons[name] = "the kernel needs a model on one device"
            elif not takes_residual(tokens, jax.ShapeDtypeStruct(shape, getattr(layers, _WEIGHT[name]).dtype)):
                reasons[name] = _not_tiles(shape[1:])
        return reasons

    def _adds(self, config: ModelConfig, stream: Stream, weights: Array) -> bool:
        return config.split == WHOLE and takes_residual(stream.x.shape[0], weights)

    def _added(self, config: ModelConfig, layers: Layers, stream: Stream, term: "_Term", count: Count) -> Stream:
        added = ResidualEpilogue(stream.x, term.bias, None if layers.in_eight_bits else term.norms, term.on)
        values = term.values.reshape(stream.x.shape[0], -1).astype(term.weights.dtype)
        given = GemmInput(values, count, scales=term.scales)
        run_on = self.multiprocessors, self.interpret
        x, ready, squares = residual_product(given, term.weights, jnp.int32(term.at), added, *run_on)
        if ready is None:
            ready = _fed(config, layers, x, squares, term.norm)
        return Stream(x, ready, squares)


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
        return jax.lax.dynamic_index_in_dim(self.norms, self.at + self.on, keepdims=False)  # clamped to the last

    def without_kernel(self, config: ModelConfig, layers: Layers, before: Stream, x: Hidden) -> Stream:
        squares = _squares(x, before.squares.shape[0])
        return Stream(x, _fed(config, layers, x, squares, self.norm), squares)


def _not_tiles(shape: tuple[int, ...]) -> str:
    return f"the kernel takes whole tiles; the weights are {' x '.join(map(str, shape))}"


def _fed(config: ModelConfig, layers: Layers, x: Hidden, squares: Array, norm: Array) -> Array:
    """What the product after the norm is given of x."""
    if not layers.in_eight_bits:
        return (x * norm.astype(jnp.float32)).astype(norm.dtype)
    size = jax.lax.rsqrt(squares.sum(axis=0)[:, None] / x.shape[-1] + config.rms_eps)
    return (x * (size * unit(x.shape[-1]))).astype(EIGHT_BIT)  # the norm's weight is in the product's


def _normed(config: ModelConfig, stream: Stream, scales: Array | None, count: Count) -> GemmInput:
    if scales is None:
        return GemmInput(stream.ready, count, stream.squares, config.rms_eps)
    return GemmInput(stream.ready, count, scales=scales, factor=1 / unit(stream.x.shape[-1]))


def _squares(x: Hidden, parts: int) -> Array:
    """In so many parts, as the kernels make them; all in the first."""
    return jnp.zeros((parts, x.shape[0]), jnp.float32).at[0].set((x * x).sum(axis=-1))
