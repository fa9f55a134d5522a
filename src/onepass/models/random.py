"""Seeded weights made on the devices, leaf by leaf: the same numbers however many devices share the model.

A layer is drawn in the model's own shape and then laid out for the devices, so that no host holds any of it and no
device more than one layer besides its own.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from onepass.models.config import ModelConfig
from onepass.models.layout import Layout, spec_of
from onepass.models.weights import Leaf, Part, Weights


def random_weights(config: ModelConfig, dtype: jnp.dtype, seed: int = 0, mesh: Mesh | None = None) -> Weights:
    """Scaled so that activations stay of order one."""
    layout = Layout(config, mesh)
    leaves = layout.leaves()
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    made = [_Filling(layout, leaf, wide, dtype).made(key) for key, (leaf, wide) in zip(keys, leaves, strict=True)]
    return layout.tree(made)


class _Filling:
    """One leaf being made."""

    def __init__(self, layout: Layout, leaf: Leaf, wide: Leaf, dtype: jnp.dtype) -> None:
        self._layout, self._leaf, self._wide, self._dtype = layout, leaf, wide, dtype
        self._sharding = layout.sharding(spec_of(wide))

    def made(self, key: jax.Array) -> jax.Array:
        leaf, wide, dtype = self._leaf, self._wide, self._dtype
        if leaf.init == 1.0:
            return self._jit(lambda: jnp.ones(wide.shape, dtype))()
        if not leaf.stacked:
            return self._jit(lambda key: self._laid_out(_normal(key, leaf.shape, leaf.init, dtype)))(key)
        # One layer at a time: float32 draws of a whole stack would hold several copies of the model.
        whole = self._jit(lambda: jnp.zeros(wide.shape, dtype))()

        def fill(whole: jax.Array, at: jax.Array, key: jax.Array) -> jax.Array:
            return whole.at[at].set(self._laid_out(_normal(key, leaf.shape[1:], leaf.init, dtype)))

        filled = self._jit(fill, donate_argnums=0)
        for at, one in enumerate(jax.random.split(key, leaf.shape[0])):
            whole = filled(whole, at, one)
        return whole

    def _jit(self, function: Any, **options: Any) -> Any:
        return jax.jit(function, out_shardings=self._sharding, **options)

    def _laid_out(self, drawn: jax.Array) -> jax.Array:
        """A layer (or an unstacked leaf) in its wide shape."""
        wide_shape = self._wide.shape[1:] if self._wide.stacked else self._wide.shape
        if drawn.shape == wide_shape:
            return drawn
        out = jnp.zeros(wide_shape, drawn.dtype)
        for part, target in zip(self._leaf.parts, self._wide.parts, strict=True):
            tensor = drawn[part.index] if part.index else drawn
            placed = self._placed(part, tensor.reshape(part.shape))
            out = out.at[target.index].set(placed.reshape(out[target.index].shape))
        return out

    def _placed(self, part: Part, tensor: jax.Array) -> jax.Array:
        """What all devices hold of a tensor, side by side."""
        layout, size = self._layout, tensor.shape[part.axis] // self._layout.count(part)
        there = layout.share_count(part)
        source = np.full(layout.devices * there, layout.count(part))  # past the end: zeros
        for number in range(layout.devices):
            for piece in layout.pieces(part, number):
                target = slice(number * there + piece.target.start, number * there + piece.target.stop)
                source[target] = np.arange(piece.source.start, piece.source.stop)
        index = (source[:, None] * size + np.arange(size)).reshape(-1)
        return jnp.take(tensor, index, axis=part.axis, mode="fill", fill_value=0)


def _normal(key: jax.Array, shape: tuple[int, ...], scale: float, dtype: jnp.dtype) -> jax.Array:
    return (jax.random.normal(key, shape, jnp.float32) * scale).astype(dtype)
