"""Who sees whom: the one visibility rule, called by the reference, every kernel and every test.

A token's place is (segment, parent segment, context segment, position). A key is visible when it is not later and its
segment is the asking token's own, its parent's, or its context's. Segments are numbered across a whole step, so tokens
of different requests share no segment. With c = context, a = an item, x, y = branches of a, and d, b = the context and
an item of another request in the same step:

            c c a a x y d b
        c   1 . . . . . . .
        c   1 1 . . . . . .
        a   1 1 1 . . . . .
        a   1 1 1 1 . . . .
        x   1 1 1 1 1 . . .
        y   1 1 1 1 . 1 . .
        d   . . . . . . 1 .
        b   . . . . . . 1 1

How tokens get their places is `engine.packing`; how attention is computed is left to the implementations.
"""

from dataclasses import dataclass

import jax
from jaxtyping import Array, Bool, Int

PADDING = -1


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Places:
    """The places of tokens, [..., tokens] each. A context's own tokens have segment = parent = context; the parent of
    an item is its context. Padding has PADDING everywhere and is seen by nobody."""

    segment: Int[Array, "... tokens"]
    parent: Int[Array, "... tokens"]
    context: Int[Array, "... tokens"]
    position: Int[Array, "... tokens"]


def visible(asking: Places, key: Places) -> Bool[Array, "... asking keys"]:
    """True where the asking token (rows) sees the key (columns)."""
    return sees(
        jax.tree.map(lambda a: a[..., :, None], asking),
        jax.tree.map(lambda a: a[..., None, :], key),
    )


def sees(asking: Places, key: Places) -> Bool[Array, "..."]:
    """The rule itself, place by place: the arrays of both are broadcast against each other. Of a key only its segment
    and position count."""
    own = (key.segment == asking.segment) | (key.segment == asking.parent) | (key.segment == asking.context)
    return own & (key.position <= asking.position) & (key.segment != PADDING)


def plain_causal(asking: Places, key: Places) -> Bool[Array, "... asking keys"]:
    """The rule switched off: every earlier segment of the step is seen, whoever's it is. The negative control of every
    isolation check."""
    key_segment, own = key.segment[..., None, :], asking.segment[..., :, None]
    not_later = key.position[..., None, :] <= asking.position[..., :, None]
    return ((key_segment < own) | ((key_segment == own) & not_later)) & (key_segment != PADDING)
