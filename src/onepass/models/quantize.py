"""Weights in 8 bits (e4m3), for products in 8 bits that need no scale at run time but the weights' own.

What is multiplied with them must fit the format's range, ±448, whatever the input; all of it is bounded:

    a normed row        no entry is above the root of their number: times `unit`
    heads' results      means of values, each value at most root · |its row of weights|
    the activation      |silu(gate) · up| ≤ |gate| · |up|, each at most root · |its row|

So the norms' weights go into the products that follow, and the bounds of values and activations into the rows that make
them; the columns that they meet next are divided by the same. The network stays the same function. Every row of a
matrix has a scale of its own. Embeddings, norms of heads, biases and the LM head stay as they are.

Where no kernel multiplies in 8 bits, a layer's weights are widened when their turn comes (`Layers.layer`): half the
memory, the same speed or less.
"""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from onepass.models.weights import Layers, Weights

EIGHT_BIT = jnp.float8_e4m3fn
LARGEST = 448.0
# What is bounded stays below this: products in 8 bits are not exact.
WITHIN = 400.0


def unit(size: int) -> float:
    """A power of two: a normed row of so many entries fills the range times this."""
    return 2.0 ** math.floor(math.log2(LARGEST / math.sqrt(size)))


def in_eight_bits(weights: Weights) -> Weights:
    return replace(weights, layers=_stacked(weights.layers))


@jax.jit
def _stacked(layers: Layers) -> Layers:
    return jax.lax.map(_layer, layers)  # a layer after another: in 32 bits all of them would be too much


def _layer(layer: Layers) -> Layers:
    wide = jax.tree.map(lambda a: a.astype(jnp.float32), layer)
    root = math.sqrt(wide.qkv.shape[-1])
    qkv, gate_up = wide.qkv * wide.attention_norm, wide.gate_up * wide.mlp_norm

    def largest(matrix: Array, bias: Array | None) -> Array:
        return root * jnp.linalg.norm(matrix, axis=-1) + (0 if bias is None else jnp.abs(bias))

    of_value = _shrink(largest(qkv[:, -1], None if wide.qkv_bias is None else wide.qkv_bias[:, -1]))
    of_each = largest(gate_up, wide.gate_up_bias)
    of_up = _shrink(of_each[0] * of_each[1])
    dtype = layer.mlp_norm.dtype
    matrices = {
        "qkv": qkv.at[:, -1].multiply(of_value[..., None]),
        "out": wide.out / of_value[:, None],
        "gate_up": gate_up.at[1].multiply(of_up[..., None]),
        "down": wide.down / of_up,
    }
    kept = {name: _in_rows(matrix, wide.out[0].size if name == "out" else None) for name, matrix in matrices.items()}
    qkv_bias = None if wide.qkv_bias is None else wide.qkv_bias.at[:, -1].multiply(of_value).astype(dtype)
    gate_up_bias = None if wide.gate_up_bias is None else wide.gate_up_bias.at[1].multiply(of_up).astype(dtype)
    ones = jnp.ones_like(layer.mlp_norm)
    return replace(
        layer,
        attention_norm=ones,
        mlp_norm=ones,
        qkv_bias=qkv_bias,
        gate_up_bias=gate_up_bias,
        **{name: matrix for name, (matrix, _) in kept.items()},
        **{f"{name}_scale": scale for name, (_, scale) in kept.items()},
    )


def _shrink(largest: Float[Array, "..."]) -> Float[Array, "..."]:
    return WITHIN / jnp.maximum(largest, jnp.finfo(jnp.float32).tiny * LARGEST)


def _in_rows(matrix: Array, terms: int | None) -> tuple[Array, Float[Array, " rows"]]:
    """The matrix in 8 bits, and what each of its rows, of so many terms (its last axis), is to be multiplied by."""
    rows = matrix.reshape(-1, terms or matrix.shape[-1])
    scale = jnp.maximum(jnp.abs(rows).max(axis=-1) / LARGEST, jnp.finfo(jnp.float32).tiny)
    return (rows / scale[:, None]).astype(EIGHT_BIT).reshape(matrix.shape), scale
