"""Weights in 8 bits with a scale for every 32 terms of a row, for CPUs: a quarter of float32's memory.

    weight[row, term] ≈ int8[row, term] · scale[row, term // 32]        scale = the block's largest magnitude / 127

An outlier costs precision in its own block only. A quantised file's own blocks are kept instead, with an offset where
they have one (`loading.int8_weights`). Embeddings, norms, biases and the LM head stay as they are. Where the CPU has
instructions for it our C++ quantises activations, too, and multiplies integers (`int8_products.h` in
`kernels/cpu/csrc/products/`); elsewhere it widens a panel of rows at a time (`cpu_products.h`), and XLA a layer when
its turn comes (`Layers.layer`).
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int8

from onepass.models.weights import MATRICES, Layers, Weights

BLOCK = 32  # of terms that have a scale in common: 16 and 32 are what cpu_products.h takes


def in_int8(weights: Weights) -> Weights:
    return replace(weights, layers=layers_in_int8(weights.layers))


@jax.jit
def layers_in_int8(layers: Layers) -> Layers:
    return jax.lax.map(_layer, layers)  # a layer after another: in float32 all of them would be too much


def _layer(layer: Layers) -> Layers:
    found: dict[str, Array] = {}
    for name in MATRICES:
        matrix = getattr(layer, name)
        rows = matrix.reshape(matrix.shape[0], -1) if name == "out" else matrix.reshape(-1, matrix.shape[-1])
        numbers, scale = _in_blocks(rows)
        found |= {name: numbers.reshape(matrix.shape), f"{name}_scale": scale}
    return replace(layer, **found)


def _in_blocks(rows: Float[Array, "rows terms"]) -> tuple[Int8[Array, "rows terms"], Float[Array, "rows blocks"]]:
    blocks = rows.astype(jnp.float32).reshape(rows.shape[0], -1, BLOCK)
    scale = jnp.abs(blocks).max(axis=-1) / 127
    divided = blocks / jnp.maximum(scale, jnp.finfo(jnp.float32).tiny)[..., None]
    return jnp.round(divided).astype(jnp.int8).reshape(rows.shape), scale
