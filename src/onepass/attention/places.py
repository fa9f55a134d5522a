"""Who sees whom: the one visibility rule, called by the reference, every kernel and every test.

A token's place is (segment, parent segment, position). A key is visible when it is not later and its segment is the
context, the asking token's own, or the asking token's parent. With c = context, a = an item, x, y = branches of a:

            c c a a x y
        c   1 . . . . .
        c   1 1 . . . .
        a   1 1 1 . . .
        a   1 1 1 1 . .
        x   1 1 1 1 1 .
        y   1 1 1 1 . 1

How tokens get their places is `engine.pack`; how attention is computed is left to the implementations.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

CONTEXT = 0
PADDING = -1


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Places:
    """The places of tokens, [..., tokens] each. Padding has segment PADDING and is seen by nobody."""

    segment: Int[Array, "... tokens"]
    parent: Int[Array, "... tokens"]
    position: Int[Array, "... tokens"]

    def take(self, start: int, stop: int) -> "Places":
        return jax.tree.map(lambda a: a[..., start:stop], self)

    def lengths(self) -> Int[Array, "..."]:
        """How many tokens are context: meaningful where the context comes first."""
        return jnp.sum(self.segment == CONTEXT, axis=-1, dtype=jnp.int32)


def visible(asking: Places, key: Places) -> Bool[Array, "... asking keys"]:
    """True where the asking token (rows) sees the key (columns)."""
    return sees(
        jax.tree.map(lambda a: a[..., :, None], asking),
        jax.tree.map(lambda a: a[..., None, :], key),
    )


def sees(asking: Places, key: Places) -> Bool[Array, "..."]:
    """The rule itself, place by place: the arrays of both are broadcast against each other."""
    own = (key.segment == asking.segment) | (key.segment == asking.parent)
    return (key.position <= asking.position) & (own | (key.segment == CONTEXT)) & (key.segment != PADDING)


def plain_causal(asking: Places, key: Places) -> Bool[Array, "... asking keys"]:
    """The rule switched off: everything earlier in the row is seen. The negative control of every isolation check."""
    key_segment, own = key.segment[..., None, :], asking.segment[..., :, None]
    not_later = key.position[..., None, :] <= asking.position[..., :, None]
    return ((key_segment < own) | ((key_segment == own) & not_later)) & (key_segment != PADDING)


def context_places(lengths: Int[Array, " rows"], width: int) -> Places:
    """Places of a context that starts at position 0 and is padded to `width`."""
    position = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (*lengths.shape, width))
    segment = jnp.where(position < lengths[..., None], CONTEXT, PADDING).astype(jnp.int32)
    return Places(segment, jnp.full_like(segment, CONTEXT), position)


def concatenate(first: Places, second: Places) -> Places:
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=-1), first, second)
