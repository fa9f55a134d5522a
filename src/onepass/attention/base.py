"""The attention interface: what an implementation is given, and what it must return.

A row is `context` tokens followed by `items` tokens, with an optional prefix whose keys are already computed. The
decoder calls `full` in every layer but the last, and `readouts` in the last, where only read-out rows are asked for.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from onepass.attention.places import Places


@dataclass(frozen=True)
class RowShape:
    """The static shape of a batch of rows: all that a program may be specialised on."""

    rows: int
    prefix: int  # keys already computed, padded
    context: int  # context tokens computed in this row, padded
    items: int  # tokens of items and branches, padded
    band: int  # no token of an item sees an item key more than band - 1 places before it
    readouts: int
    labels: int

    @property
    def tokens(self) -> int:
        return self.context + self.items


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Keys:
    """Keys and values with their places; those of all layers, where `layer` says which are meant."""

    k: Float[Array, "*layers rows keys kv_heads head_dim"]
    v: Float[Array, "*layers rows keys kv_heads head_dim"]
    places: Places
    layer: Int[Array, ""] | None = None

    def picked(self) -> "Keys":
        """Out of their stack: a copy."""
        if self.layer is None:
            return self
        k, v = (jax.lax.dynamic_index_in_dim(a, self.layer, keepdims=False) for a in (self.k, self.v))
        return Keys(k, v, self.places)

    def take(self, start: int, stop: int) -> "Keys":
        return Keys(self.k[:, start:stop], self.v[:, start:stop], self.places.take(start, stop))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Asking:
    """Queries with their places; `index` says which token of the row each one is."""

    q: Float[Array, "rows asking kv_heads group head_dim"]
    places: Places
    index: Int[Array, "rows asking"]


Out = Float[Array, "rows asking kv_heads group head_dim"]


class Attention(Protocol):
    """One way to compute softmax(q·k / sqrt(d)) v under the visibility rule."""

    @property
    def name(self) -> str: ...

    @property
    def from_stack(self) -> bool:
        """Whether `full` takes a prefix's keys in the stack of all layers."""
        ...

    def prepare(self, places: Places, prefix: Places | None, shape: RowShape) -> Any:
        """What every layer needs to know of the places, computed once: arrays for `full`, or None."""
        ...

    def full(self, asking: Asking, own: Keys, prefix: Keys | None, shape: RowShape, prepared: Any = None) -> Out:
        """Every token of the row asks."""
        ...

    def readouts(self, asking: Asking, own: Keys, prefix: Keys | None, shape: RowShape) -> Out:
        """Only the read-out tokens ask."""
        ...


def precision(dtype: jnp.dtype) -> jax.lax.Precision:
    """float32 means float32 on every device: no TF32, and never fewer bf16 passes than keep all its bits."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else jax.lax.Precision.DEFAULT
