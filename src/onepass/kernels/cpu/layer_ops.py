"""The matrix products of a layer on CPUs with AMX: `csrc/amx/amx_products*.cc`, called through XLA's foreign functions.

Weights are given as they are stacked, with the layer's number, so that none is copied. The kernels stop at the step's
last real token. Sums are float32 until the end: what goes to the residual stream is never rounded. In float32 a number
is three of 16 bits, exactly, and a product six. Weights in GGUF's blocks are widened (`gguf_rows.h`). So are those
in int8, or multiplied as integers with activations that have scales for as many terms (`int8_blocks.h`).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from onepass.kernels.cpu.attention import DTYPES, TILE
from onepass.kernels.cpu.operands import block_size, in_float32, weight_arrays
from onepass.kernels.cpu.vocabulary import over_vocabulary
from onepass.models.config import ModelConfig
from onepass.models.gguf_matrix import GgufMatrix
from onepass.models.int8 import is_coarse
from onepass.models.layer_ops import Count, Layer, Qkv, Stream, XlaLayerOps
from onepass.models.layers import Angles, Hidden
from onepass.models.weights import Layers, Weights


@dataclass(frozen=True)
class AmxLayerOps(XlaLayerOps):
    """Needs `build.load_amx()` with the kind of weights. Those in int8 are widened to the network's numbers; with
    `integer_products` activations are quantised instead where scales are coarse (`models.int8`). What the kernels do
    not take is XLA's: sizes that are not multiples of 32, other kinds of 8 bits, and coarse scales without integers. An
    activation is in the kernels' order (blocks of tokens, steps of terms, planes, halves, tokens, terms), and only they
    read it."""

    integer_products: bool = False
    in_blocks: ClassVar[bool] = False  # the kernels have blocks of their own
    token_multiple: ClassVar[int] = TILE

    def qkv(self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, angles: Angles, count: Count) -> Qkv:
        if not _takes_qkv(layers):
            return super().qkv(config, layers, at, stream, angles, count)
        network = layers.attention_norm
        _, kv_heads, rows, size, _ = layers.qkv.shape
        groups: tuple[tuple[int, ...], ...] = ((rows - 2,), (), ())  # of q, k and v
        out = [jax.ShapeDtypeStruct((stream.shape[0], kv_heads, *n, size), network.dtype) for n in groups]
        call = jax.ffi.ffi_call(_target("qkv", layers.qkv, network), (*out, _workspace(stream, network)))
        q, k, v, _ = call(
            stream, jnp.int32(count), network, *weight_arrays(layers, "qkv"), jnp.int32(at),
            in_float32(layers.qkv_bias), in_float32(layers.q_norm), in_float32(layers.k_norm), *angles,
            eps=np.float32(config.rms_eps),
        )  # fmt: skip
        return q, k, v

    def attn_out(
        self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, attended: Array, count: Count
    ) -> Stream:
        if not self._takes_out(layers):
            return super().attn_out(config, layers, at, stream, attended, count)
        weight, scale, offset = weight_arrays(layers, "out")
        x, dot = attended.reshape(attended.shape[0], -1), self._multiplies_integers(layers, "out")
        if not isinstance(layers.out, GgufMatrix):
            weight = weight.reshape(_flat(layers.out.shape))
        call = jax.ffi.ffi_call(
            _target("add", layers.out, attended, dot),
            (_like(stream), _int8_workspace(*x.shape) if dot else _workspace(x, attended)),
            input_output_aliases={7: 0},
        )
        given = (x, jnp.int32(count), weight, scale, offset, jnp.int32(at), in_float32(layers.out_bias))
        out, _ = call(*given, stream)
        return out

    def gate_up(self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, count: Count) -> Array:
        if not self._takes_mlp(layers):
            return super().gate_up(config, layers, at, stream, count)
        network, tokens, mlp = layers.mlp_norm, stream.shape[0], layers.down.shape[-1]
        given = (stream, jnp.int32(count), network, *weight_arrays(layers, "gate_up"), jnp.int32(at))
        if dot := self._multiplies_mlp_integers(layers):
            call = jax.ffi.ffi_call(
                _target("gate_up", layers.gate_up, network, dot),
                (_int8_workspace(tokens, mlp), _int8_workspace(*stream.shape)),
            )
            blocks = np.int64(layers.down_scale.shape[-1])
            return call(*given, eps=np.float32(config.rms_eps), out_blocks=blocks)[0]
        shape = (-(-tokens // TILE), mlp // TILE, _planes(network), 2, TILE // 2, TILE)
        out = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
        call = jax.ffi.ffi_call(_target("gate_up", layers.gate_up, network), (out, _workspace(stream, network)))
        return call(*given, eps=np.float32(config.rms_eps))[0]

    def down(
        self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, activation: Array, count: Count
    ) -> Stream:
        if not self._takes_mlp(layers):
            return super().down(config, layers, at, stream, activation, count)
        target = _target("add_tiled", layers.down, layers.mlp_norm, self._multiplies_mlp_integers(layers))
        call = jax.ffi.ffi_call(target, _like(stream), input_output_aliases={7: 0})
        given = (activation, jnp.int32(count), *weight_arrays(layers, "down"), jnp.int32(at))
        return call(*given, in_float32(layers.down_bias), stream)

    def finishes(self, config: ModelConfig, layers: Layers) -> bool:
        return not self.left_to_xla(config, layers)

    def over_vocabulary(
        self, config: ModelConfig, weights: Weights, hidden: Float[Array, "readouts hidden"], count: Count
    ) -> Float[Array, "readouts 3"] | None:
        """XLA's own products are in tiles, too; of blocks it knows nothing."""
        table = weights.unembed
        if not isinstance(table, GgufMatrix):
            return None
        if not _takes(table, (1, *table.shape)):
            return over_vocabulary(weights, hidden, count)
        x = hidden.astype(table.dtype)
        out = jax.ShapeDtypeStruct((x.shape[0], 3), jnp.float32)
        call = jax.ffi.ffi_call(_target("vocabulary", table, x), (out, _workspace(x, x)))
        return call(x, jnp.int32(count), *table.arrays, jnp.int32(0), in_float32(weights.head_bias))[0]

    def left_to_xla(self, config: ModelConfig, layers: Layers) -> dict[str, str]:
        takes = {"qkv": _takes_qkv(layers), "attn_out": self._takes_out(layers), "gate_up": self._takes_mlp(layers)}
        takes["down"] = takes["gate_up"]
        why = (
            f"the kernel takes GGUF's blocks, int8 and 16 or 32 bits, sizes in multiples of {TILE}, an MLP without a "
            "bias before its gate, and scales of many terms only with quantized activations"
        )
        return {name: why for name, taken in takes.items() if not taken}

    def _takes_out(self, layers: Layers) -> bool:
        taken = _takes(layers.out, _flat(layers.out.shape))
        return taken and self._multiplies_integers(layers, "out") == _is_coarse(layers, "out")

    def _takes_mlp(self, layers: Layers) -> bool:
        """Both products or none: the activation between them is theirs."""
        if layers.gate_up_bias is not None or not (_takes(layers.gate_up) and _takes(layers.down)):
            return False
        return {self._multiplies_mlp_integers(layers)} == {_is_coarse(layers, name) for name in ("gate_up", "down")}

    def _multiplies_integers(self, layers: Layers, name: str) -> bool:
        return self.integer_products and _is_coarse(layers, name)

    def _multiplies_mlp_integers(self, layers: Layers) -> bool:
        return self._multiplies_integers(layers, "gate_up") and self._multiplies_integers(layers, "down")


def _is_coarse(layers: Layers, name: str) -> bool:
    return getattr(layers, name).dtype == jnp.int8 and is_coarse(block_size(layers, name))


def _flat(out: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of `out` without its heads: [layers, results, terms]."""
    return (*out[:2], math.prod(out[2:]))


def _takes(stacked: Array | GgufMatrix | jax.ShapeDtypeStruct, shape: tuple[int, ...] | None = None) -> bool:
    _, *results, terms = shape or stacked.shape
    return stacked.dtype in (*DTYPES, jnp.int8) and not (terms % TILE or math.prod(results) % TILE)


def _takes_qkv(layers: Layers) -> bool:
    """Whole pairs of a head's halves."""
    return _takes(layers.qkv) and not layers.qkv.shape[-2] % TILE


def takes_blocks(config: ModelConfig) -> bool:
    """Whether the kernels take all matrices of such a model, as they must where XLA cannot: in GGUF's blocks."""
    sizes = (config.hidden_size, config.head_dim, config.mlp_size)
    return not config.mlp_bias and not any(size % TILE for size in sizes)


def _target(operation: str, weight: Array | GgufMatrix, network: Array, dot: bool = False) -> str:
    """By the weight's type, and the network's."""
    if isinstance(weight, GgufMatrix):
        return f"onepass_amx_{operation}_gguf_{DTYPES[network.dtype]}"
    kind = "int8_dot_" if dot else "int8_" if weight.dtype == jnp.int8 else ""
    return f"onepass_amx_{operation}_{kind}{DTYPES[network.dtype]}"


def _planes(network: Array) -> int:
    """How many numbers of 16 bits each number is."""
    return 3 if network.dtype == jnp.float32 else 1


def _like(stream: Hidden) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(stream.shape, jnp.float32)


def _workspace(x: Float[Array, "tokens terms"], network: Array) -> jax.ShapeDtypeStruct:
    """Memory for tokens in tiles, which begin at a whole line."""
    return jax.ShapeDtypeStruct((-(-x.shape[0] // TILE) * TILE * x.shape[1] * 2 * _planes(network) + 64,), jnp.uint8)


def _int8_workspace(tokens: int, terms: int) -> jax.ShapeDtypeStruct:
    """The same in 8 bits, with a scale for every 64 terms or fewer of them."""
    return jax.ShapeDtypeStruct((-(-tokens // TILE) * TILE * (terms + terms // 64 * 4) + 64,), jnp.uint8)
