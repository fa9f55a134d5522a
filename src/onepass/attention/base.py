"""The attention interface: a flat step of tokens, the pool of pages that holds contexts, and what computes over both.

A step is one row of tokens of any requests: parts of contexts, items and branches, one sequence after another. Keys of
context tokens are written into the pages of their sequence before the layer's attention, and every token reads its
context from pages; item and branch keys live in the step only. So a token sees two kinds of keys:

    pages   of its context: a contiguous range of the step's page table
    own     keys of the step's items and branches: a contiguous range of the step's tokens

Nothing here is a program's identity but `StepShape`: everything else is array values.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from onepass.attention.mask import PADDING, Places

NOWHERE = -1  # a slot: the token's keys are not kept


@dataclass(frozen=True)
class StepShape:
    """The sizes of a step's arrays: all that a program is specialised on."""

    tokens: int  # the rung
    readouts: int  # tokens that can be read at
    pairs: int  # (read-out, label) pairs whose logits the step itself computes
    entries: int  # of the page table
    page: int  # tokens of a page


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KvPool:
    """Keys and values of all kept contexts, in pages. Page 0 belongs to nobody: unused entries name it."""

    k: Float[Array, "layers pages page kv_heads head_dim"]
    v: Float[Array, "layers pages page kv_heads head_dim"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PageTable:
    """The pages of a step's sequences: one sequence after another, in the order of their tokens in the step, each from
    its context's beginning. Entries past the last are page 0 with context PADDING and length 0."""

    page: Int[Array, " entries"]
    context: Int[Array, " entries"]  # the context segment whose keys it holds
    start: Int[Array, " entries"]  # position of its first key
    length: Int[Array, " entries"]  # keys that are there once this step has written its own

    def places(self, page: int) -> Places:
        """Of every key of every entry, [entries · page]; those that are not there are padding."""
        within = jnp.arange(page, dtype=jnp.int32)
        there = within < self.length[:, None]
        segment = jnp.where(there, self.context[:, None], PADDING).reshape(-1)
        position = (self.start[:, None] + within).reshape(-1)
        return Places(segment, segment, segment, position)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Queries:
    """The tokens that ask, in the order in which they lie in the step."""

    places: Places
    index: Int[Array, " asking"]  # which token of the step it is
    first_entry: Int[Array, " asking"]  # the first entry of its context in the page table
    context_keys: Int[Array, " asking"]  # keys of its context that it sees: the first so many positions
    first_own: Int[Array, " asking"]  # the first token of the step whose key it may see; above `index` where none
    count: Int[Array, ""]  # how many are real: the first ones; the others are padding and see nothing

    def take(self, at: Int[Array, " taken"], count: Int[Array, ""]) -> "Queries":
        """Those at the given places, of which the first `count` are real."""
        real = jnp.arange(at.shape[0]) < count

        def keep(a: Array, padding: int) -> Array:
            return jnp.where(real, a[at], padding)

        places = jax.tree.map(lambda a: keep(a, PADDING), self.places)
        index = self.index[at]
        return Queries(
            places, index, keep(self.first_entry, 0), keep(self.context_keys, 0),
            jnp.where(real, self.first_own[at], index + 1), count,
        )  # fmt: skip


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Step:
    """A step's tokens and where their keys are. `queries` are all of its tokens."""

    tokens: Int[Array, " tokens"]
    queries: Queries
    slots: Int[Array, " tokens"]  # where a token's key is kept: page number · page size + offset, or NOWHERE
    pages: PageTable
    readouts: Int[Array, " readouts"]  # tokens to read at, ascending; the rest repeats the last one
    num_readouts: Int[Array, ""]

    @property
    def own_keys(self) -> Places:
        """Places of the step's own keys: those of items and branches. Context tokens are read from pages."""
        places = self.queries.places
        of_context = places.segment == places.context
        segment = jnp.where(of_context, PADDING, places.segment)
        return Places(segment, segment, segment, places.position)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KeyValues:
    """All keys that a layer's tokens can see: the step's own, and the pool, which has this step's context already."""

    k: Float[Array, "tokens kv_heads head_dim"]
    v: Float[Array, "tokens kv_heads head_dim"]
    pool: KvPool
    layer: Int[Array, ""]


Heads = Float[Array, "asking kv_heads group head_dim"]


class Attention(Protocol):
    """One way to compute softmax(q·k / sqrt(d)) v under the visibility rule."""

    @property
    def name(self) -> str: ...

    @property
    def page(self) -> int:
        """Tokens of a page of the pool."""
        ...

    def prepare(self, queries: Queries, step: Step, shape: StepShape) -> Any:
        """Tables that every layer needs, made once a step: arrays for `attend`, or None."""
        ...

    def attend(self, q: Heads, keys: KeyValues, queries: Queries, step: Step, shape: StepShape, prepared: Any) -> Heads:
        """In q's dtype. What padding gets is arbitrary, and no real token ever reads it."""
        ...

    def write(
        self, pool: KvPool, layer: Int[Array, ""], k: Array, v: Array, step: Step, prepared: Any = None
    ) -> KvPool:
        """The pool with the keys and values of the step's context tokens in their slots, in place. `prepared` is
        that of all of the step's tokens, where there is one."""
        ...


def scatter(pool: KvPool, layer: Int[Array, ""], k: Array, v: Array, slots: Int[Array, " tokens"]) -> KvPool:
    """`Attention.write` in plain XLA."""
    page = pool.k.shape[2]
    # Out of range is dropped; a negative index would count from the end.
    at = jnp.where(slots < 0, pool.k.shape[1] * page, slots)

    def put(kept: Array, new: Array) -> Array:
        return kept.at[layer, at // page, at % page].set(new.astype(kept.dtype), mode="drop")

    return KvPool(put(pool.k, k), put(pool.v, v))


def precision(dtype: jnp.dtype) -> jax.lax.Precision:
    """float32 means float32 on every device: no TF32, and never fewer bf16 passes than keep all its bits."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else jax.lax.Precision.DEFAULT
