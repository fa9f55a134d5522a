"""Weights in 8 bits with a scale for every 32 terms of a row, for CPUs: a quarter of float32's memory.

    weight[row, term] ≈ int8[row, term] · scale[row, term // 32]        scale = the block's largest magnitude / 127

An outlier costs precision in its own block only. A quantised file's own blocks are kept instead, with an offset where
they have one (`loading.int8_weights`). Embeddings, norms, biases and the LM head stay as they are. Where the CPU has
instructions for it our C++ quantises activations, too, and multiplies integers (`int8_products.h` in
`kernels/cpu/csrc/products/`); elsewhere it widens a panel of rows at a time (`cpu_products.h`), and XLA a layer when
its turn comes (`Layers.layer`).

A scale costs an inner loop time. Where integers are multiplied on x86-64 without tiles they are of up to 96 terms, by
AMX's tiles, which sum 64 terms at once, of up to 576, and of `down`, whose activations have outliers, of up to 192; not
of `qkv`, whose products stay wider there. Weights with a scale of more than 32 terms are stored rotated (`rotation`).
`paired` scales are for CPUs whose instruction adds two products in 16 bits: no two numbers side by side are more than
128 together.
"""

from dataclasses import replace
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int8

from onepass.models.config import ModelConfig
from onepass.models.rotation import group_of, rotated
from onepass.models.weights import MATRICES, Layers, Weights, is_rotated

BLOCK = 32  # of terms that have a scale in common: 16 and 32 are what cpu_products.h takes
STEP = 64  # terms that tiles sum at once
Int8Scales = Literal["fine", "paired", "medium", "coarse"]
# Terms of which a scale is a multiple, and how many of these at most. Matrices that are not named have blocks of 32.
MOST_STEPS: dict[Int8Scales, dict[str, tuple[int, int]]] = {
    "fine": {},
    "paired": dict.fromkeys(MATRICES, (BLOCK, 3)),
    "medium": dict.fromkeys(MATRICES, (BLOCK, 3)),
    "coarse": {"out": (STEP, 9), "gate_up": (STEP, 9), "down": (STEP, 3)},
}


def block_terms(matrix: str, terms: int, scales: Int8Scales) -> int:
    """How many terms of a row have a scale in common."""
    step, most = MOST_STEPS[scales].get(matrix, (BLOCK, 1))
    return max((n * step for n in range(1, most + 1) if terms % (n * step) == 0), default=BLOCK)


def takes_coarse(model: ModelConfig) -> bool:
    """Whether every row of the model's weights is in whole steps, and all products are of a kind that tiles take."""
    rows = (model.hidden_size, model.num_heads * model.head_dim, model.mlp_size)
    return not model.mlp_bias and not any(terms % STEP for terms in rows)


def is_coarse(block: int) -> bool:
    """Whether tiles of integers take such a block."""
    return block % STEP == 0 and block <= STEP * max(most for _, most in MOST_STEPS["coarse"].values())


def largest[Blocks: (Array, np.ndarray)](magnitudes: Blocks, scales: Int8Scales) -> Blocks:
    """Of each block, what is going to be 127: a number, or a sum of two that lie side by side."""
    if scales == "paired" and is_rotated(magnitudes.shape[-1]):
        magnitudes = magnitudes[..., ::2] + magnitudes[..., 1::2]
    return magnitudes.max(axis=-1)


def in_int8(weights: Weights, scales: Int8Scales = "fine") -> Weights:
    return replace(weights, layers=layers_in_int8(weights.layers, scales))


@partial(jax.jit, static_argnames="scales")
def layers_in_int8(layers: Layers, scales: Int8Scales = "fine") -> Layers:
    # a layer after another: in float32 all of them would be too much
    return jax.lax.map(lambda layer: _layer(layer, scales), layers)


def _layer(layer: Layers, scales: Int8Scales) -> Layers:
    found: dict[str, Array] = {}
    for name in MATRICES:
        matrix = getattr(layer, name)
        rows = matrix.reshape(matrix.shape[0], -1) if name == "out" else matrix.reshape(-1, matrix.shape[-1])
        numbers, scale = _in_blocks(rows, block_terms(name, rows.shape[-1], scales), scales)
        found |= {name: numbers.reshape(matrix.shape), f"{name}_scale": scale}
    return replace(layer, **found)


def _in_blocks(
    rows: Float[Array, "rows terms"], block: int, scales: Int8Scales
) -> tuple[Int8[Array, "rows terms"], Float[Array, "rows blocks"]]:
    group = group_of(block)
    blocks = (rotated(rows.astype(jnp.float32), group) / group).reshape(rows.shape[0], -1, block)
    scale = largest(jnp.abs(blocks), scales) / 127
    divided = blocks / jnp.maximum(scale, jnp.finfo(jnp.float32).tiny)[..., None]
    return jnp.round(divided).astype(jnp.int8).reshape(rows.shape), scale
