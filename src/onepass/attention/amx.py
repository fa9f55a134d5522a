"""Scoring attention on CPUs with AMX: `native/attention.cc`, called through XLA's foreign functions.

A row's context and its items come in blocks of 32 tokens. Which keys a block sees is said here, by the one rule, once
for all layers:

    prefix   how many keys of the prefix, and
    whole    of the row's context: all of its tokens see them, without a mask.
    seen     of the keys of its own kind from block `from` on: a bit for each token and key.

Rows that are not in sixteens, and the last layer's few read-outs, are `cascade`'s.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32

from onepass.attention.base import Asking, Keys, Out, RowShape
from onepass.attention.cascade import Cascade
from onepass.attention.places import PADDING, Places, visible

BLOCK = 32


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Seen:
    prefix: Int[Array, "rows blocks"]
    whole: Int[Array, "rows blocks"]
    start: Int[Array, "rows blocks"]
    bits: UInt32[Array, "rows blocks block window"]


@dataclass(frozen=True)
class Amx:
    others: Cascade = field(default_factory=Cascade)
    name: str = "amx"
    from_stack: ClassVar[bool] = False

    def prepare(self, places: Places, prefix: Places | None, shape: RowShape) -> Seen | None:
        return seen_of(places, prefix, shape) if takes(shape) else None

    def full(
        self, asking: Asking, own: Keys, prefix: Keys | None, shape: RowShape, prepared: Seen | None = None
    ) -> Out:
        if not takes(shape):
            return self.others.full(asking, own, prefix, shape)
        seen = prepared or seen_of(own.places, prefix.places if prefix else None, shape)
        none = own.k[:, :0]
        prefix_k, prefix_v = (prefix.k, prefix.v) if prefix else (none, none)
        rows, _, heads, _, size = asking.q.shape
        blocks = seen.bits.shape[1] + _blocks(prefix_k.shape[1])
        numbers, planes = in_planes(asking.q.dtype)
        # Keys and values once more, as the kernel wants them.
        tiles = 2 * rows * heads * blocks * BLOCK * size * 2 * planes + 128
        call = jax.ffi.ffi_call(
            f"onepass_attend_{numbers}",
            (jax.ShapeDtypeStruct(asking.q.shape, asking.q.dtype), jax.ShapeDtypeStruct((tiles,), jnp.uint8)),
        )
        out, _ = call(
            asking.q, own.k, own.v, prefix_k, prefix_v, seen.prefix, seen.whole, seen.start, seen.bits,
            context=np.int64(shape.context),
        )  # fmt: skip
        return out

    def readouts(self, asking: Asking, own: Keys, prefix: Keys | None, shape: RowShape) -> Out:
        return self.others.readouts(asking, own, prefix, shape)


def in_planes(dtype: jnp.dtype) -> tuple[str, int]:
    """The kernels' name for these numbers, and how many of 16 bits each of them is."""
    return ("f32", 3) if dtype == jnp.float32 else ("bf16", 1)


def takes(shape: RowShape) -> bool:
    return not (shape.context % 16 or shape.items % 16 or shape.prefix % 16)


def seen_of(own: Places, prefix: Places | None, shape: RowShape) -> Seen:
    of_context, blocks = _blocks(shape.context), _blocks(shape.context) + _blocks(shape.items)
    number = np.arange(blocks)
    in_context = number < of_context
    starts = np.where(in_context, number * BLOCK, shape.context + (number - of_context) * BLOCK)
    ends = np.minimum(starts + BLOCK, np.where(in_context, shape.context, shape.tokens))
    before = _blocks(min(shape.band, shape.items) - 1) if shape.items else 0
    first = np.where(in_context, number, np.maximum(of_context, number - before))
    # The keys of the window, by number of block; those past the asking block are nobody's.
    window = first[:, None] + np.arange(before + 1)
    known = np.minimum(window, number[:, None])
    tokens, token_known = _within(starts, ends)
    keys = tokens[known].reshape(blocks, -1)
    key_known = (token_known[known] & (window == known)[..., None]).reshape(blocks, -1)

    asking, key = (_taken(own, *which) for which in ((tokens, token_known), (keys, key_known)))
    words = visible(asking, key).reshape(own.segment.shape[0], blocks, BLOCK, before + 1, 32)
    bits = (words.astype(jnp.uint32) << jnp.arange(32, dtype=jnp.uint32)).sum(axis=-1, dtype=jnp.uint32)
    some = (asking.segment != PADDING).any(axis=-1)
    length = own.take(0, shape.context).lengths()[:, None]
    whole = jnp.where(in_context, np.where(in_context, starts, 0), length)
    prefix_length = jnp.zeros_like(length) if prefix is None else prefix.lengths()[:, None]

    def for_tokens(count: Array) -> Int[Array, "rows blocks"]:
        return jnp.where(some, count, 0).astype(jnp.int32)

    start = jnp.broadcast_to(jnp.asarray(first, jnp.int32), some.shape)
    return Seen(for_tokens(prefix_length), for_tokens(whole), start, bits)


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK)


def _within(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indexes of each block's tokens, and which of them there are."""
    index = starts[:, None] + np.arange(BLOCK)
    return np.minimum(index, ends[:, None] - 1), index < ends[:, None]


def _taken(places: Places, index: np.ndarray, known: np.ndarray) -> Places:
    taken: Places = jax.tree.map(lambda a: a[:, index], places)
    return Places(jnp.where(known, taken.segment, PADDING), taken.parent, taken.position)
