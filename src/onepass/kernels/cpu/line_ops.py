"""The matrix products of a layer on CPUs without AMX: `csrc/products/`, called through XLA's foreign functions.

The residual stream and the MLP's activation lie in lines of 16 tokens side by side, [lines, size, 16] in float32, so
that the kernels read weights as they are: stacked, with the layer's number, none copied or brought into another order.
They stop at the line of the step's last real token. Where weights are in 8 bits or fewer, activations may be
quantised as well, and integers are multiplied (`csrc/products/int8_products.h`).
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from onepass.kernels.cpu.attention import DTYPES
from onepass.kernels.cpu.operands import block_size, in_float32, weight_arrays
from onepass.kernels.cpu.vocabulary import LINE, over_vocabulary
from onepass.models.config import ModelConfig
from onepass.models.gguf_matrix import GgufMatrix
from onepass.models.int8 import BLOCK
from onepass.models.layer_ops import OPERATIONS, Count, Layer, Qkv, Stream, XlaLayerOps
from onepass.models.layers import Angles, Hidden
from onepass.models.weights import MATRICES, Layers, Weights, is_rotated
from onepass.parallel.split import WHOLE

MAX_ROTATED = 96  # kMaxRotated of rotated_products.h


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Lines:
    """The residual stream of so many tokens; the last line may have room for more."""

    x: Float[Array, "lines hidden 16"]
    tokens: int = field(metadata={"static": True})


@dataclass(frozen=True)
class CpuLayerOps(XlaLayerOps):
    """Needs `build.load_cpu()` with the kind of weights; with `integer_products` activations are quantised for those in
    8 bits. Models that devices share and weights in other kinds of 8 bits are XLA's, from `begin` on."""

    integer_products: bool = False
    in_blocks: ClassVar[bool] = False  # the kernels have blocks of their own
    token_multiple: ClassVar[int] = 1

    def begin(self, config: ModelConfig, layers: Layers, x: Hidden, count: Count) -> Stream:
        if self.left_to_xla(config, layers):
            return super().begin(config, layers, x, count)
        lines = jnp.pad(x, ((0, -x.shape[0] % LINE), (0, 0))).reshape(-1, LINE, x.shape[1])
        return Lines(lines.transpose(0, 2, 1), x.shape[0])

    def end(self, stream: Stream) -> Hidden:
        if not isinstance(stream, Lines):
            return super().end(stream)
        return stream.x.transpose(0, 2, 1).reshape(-1, stream.x.shape[1])[: stream.tokens]

    def qkv(self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, angles: Angles, count: Count) -> Qkv:
        if not isinstance(stream, Lines):
            return super().qkv(config, layers, at, stream, angles, count)
        _, kv_heads, rows, size, _ = layers.qkv.shape
        groups: tuple[tuple[int, ...], ...] = ((rows - 2,), (), ())  # of q, k and v
        out = [jax.ShapeDtypeStruct((stream.tokens, kv_heads, *n, size), layers.mlp_norm.dtype) for n in groups]
        call = jax.ffi.ffi_call(self._target("qkv", layers.qkv, layers.mlp_norm), (*out, _like(stream.x)))
        q, k, v, _ = call(
            stream.x, jnp.int32(count), layers.attention_norm, *weight_arrays(layers, "qkv"), jnp.int32(at),
            in_float32(layers.qkv_bias), in_float32(layers.q_norm), in_float32(layers.k_norm), *angles,
            eps=np.float32(config.rms_eps),
        )  # fmt: skip
        return q, k, v

    def attn_out(
        self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, attended: Array, count: Count
    ) -> Stream:
        if not isinstance(stream, Lines):
            return super().attn_out(config, layers, at, stream, attended, count)
        x = attended.reshape(attended.shape[0], -1)
        space = jax.ShapeDtypeStruct((stream.x.shape[0], x.shape[1], LINE), jnp.float32)
        call = jax.ffi.ffi_call(
            self._target("add", layers.out, x), (_like(stream.x), space), input_output_aliases={7: 0}
        )
        given = (x, jnp.int32(count), *weight_arrays(layers, "out"), jnp.int32(at), in_float32(layers.out_bias))
        out, _ = call(*given, stream.x)
        return replace(stream, x=out)

    def gate_up(self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, count: Count) -> Array:
        if not isinstance(stream, Lines):
            return super().gate_up(config, layers, at, stream, count)
        # Quantised lines lie in groups of four: those of one line have no room in its float32 numbers.
        lines = max(stream.x.shape[0], 2 if self._mlp_block(layers) else 1)
        out = jax.ShapeDtypeStruct((lines, layers.gate_up.shape[2], LINE), jnp.float32)
        call = jax.ffi.ffi_call(self._target("gate_up", layers.gate_up, layers.mlp_norm), (out, _like(stream.x)))
        activation, _ = call(
            stream.x, jnp.int32(count), layers.mlp_norm, *weight_arrays(layers, "gate_up"), jnp.int32(at),
            in_float32(layers.gate_up_bias), eps=np.float32(config.rms_eps), out_block=self._mlp_block(layers),
        )  # fmt: skip
        return activation

    def down(
        self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, activation: Array, count: Count
    ) -> Stream:
        if not isinstance(stream, Lines):
            return super().down(config, layers, at, stream, activation, count)
        target = self._target("add_lines", layers.down, layers.mlp_norm)
        call = jax.ffi.ffi_call(target, _like(stream.x), input_output_aliases={7: 0})
        given = (activation, jnp.int32(count), *weight_arrays(layers, "down"), jnp.int32(at))
        out = call(*given, in_float32(layers.down_bias), stream.x, x_block=self._mlp_block(layers))
        return replace(stream, x=out)

    def _mlp_block(self, layers: Layers) -> np.int64:
        """Terms of a scale of the MLP's activation where `gate_up` quantises it, in the memory of as many float32
        numbers; else 0."""
        blocks = [block_size(layers, name) if layers.in_eight_bits else 0 for name in ("gate_up", "down")]
        return np.int64(blocks[1] if all(map(is_rotated, blocks)) else 0)

    def finishes(self, config: ModelConfig, layers: Layers) -> bool:
        return not self.left_to_xla(config, layers)

    def over_vocabulary(
        self, config: ModelConfig, weights: Weights, hidden: Float[Array, "readouts hidden"], count: Count
    ) -> Float[Array, "readouts 3"] | None:
        return over_vocabulary(weights, hidden, count) if config.split == WHOLE else None

    def left_to_xla(self, config: ModelConfig, layers: Layers) -> dict[str, str]:
        """All operations or none: the stream is in the kernels' order from `begin` to `end`."""
        why = None
        if config.split != WHOLE:
            why = "the kernels need a model on one device"
        elif layers.qkv.dtype not in (*DTYPES, jnp.int8):
            why = f"the kernels take bfloat16, float32 and int8; the weights are {layers.qkv.dtype}"
        elif layers.qkv.dtype == jnp.int8 and layers.qkv_scale is not None:
            longest = max(block_size(layers, name) for name in MATRICES)
            if longest > (MAX_ROTATED if self.integer_products else BLOCK):
                why = f"the weights have scales of {longest} terms, for other kernels"
        return {} if why is None else dict.fromkeys(OPERATIONS, why)

    def _target(self, operation: str, weight: Array | GgufMatrix, network: Array) -> str:
        """By the weight's type, and the network's."""
        kind = "gguf_" if isinstance(weight, GgufMatrix) else "int8_" if weight.dtype == jnp.int8 else ""
        dot = "dot_" if kind and self.integer_products else ""
        return f"onepass_cpu_{operation}_{kind}{dot}{DTYPES[network.dtype]}"


def _like(x: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, jnp.float32)
