"""A layer's weights as our C++ is given them: stacked, with the layer's number, none copied."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from onepass.models.gguf_matrix import GgufMatrix
from onepass.models.weights import Layers


def weight_arrays(layers: Layers, name: str) -> tuple[Array, Array, Array]:
    """A matrix with the scales and offsets of weights in 8 bits, empty of others; or GGUF's blocks with the places and
    types of rows."""
    weight = getattr(layers, name)
    if isinstance(weight, GgufMatrix):
        return weight.arrays
    return weight, in_float32(getattr(layers, f"{name}_scale")), in_float32(getattr(layers, f"{name}_offset"))


def block_size(layers: Layers, name: str) -> int:
    """Of weights in int8: how many terms have a scale in common."""
    return math.prod(getattr(layers, name).shape[1:]) // math.prod(getattr(layers, f"{name}_scale").shape[1:])


def in_float32(stacked: Array | None) -> Float[Array, "..."]:
    """All layers'; empty where there is none."""
    return jnp.zeros((0,), jnp.float32) if stacked is None else stacked.astype(jnp.float32)
