"""Which keys a block of asking tokens visits, as ranges: made once a step, from places alone, for any size of blocks.

A step's sequences lie one after another, and so do their pages in the page table. The pages that the tokens of a block
see are therefore one range of entries, and the item keys one range of tokens:

    [first, whole)    entries of which every token of the block sees every key: no mask
    [whole, end)      entries of which some tokens see some keys: the rule is asked
    [own, own_end)    tokens of the step whose keys some token of the block sees: the rule is asked

Nothing of size T×T exists. What is done with a range is left to the kernels.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from onepass.attention.base import Queries

FAR = jnp.iinfo(jnp.int32).max


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BlockTable:
    first: Int[Array, " blocks"]
    whole: Int[Array, " blocks"]
    end: Int[Array, " blocks"]
    own: Int[Array, " blocks"]
    own_end: Int[Array, " blocks"]


def block_table(queries: Queries, block: int, page: int) -> BlockTable:
    """For blocks of so many asking tokens, which must divide their number. A block of padding alone visits nothing."""

    def blocks(a: Array) -> Array:
        return a.reshape(-1, block)

    sees_pages, sees_own = blocks(queries.context_keys > 0), blocks(queries.first_own <= queries.index)
    real = sees_pages | sees_own
    entry, keys, context = blocks(queries.first_entry), blocks(queries.context_keys), blocks(queries.places.context)
    first = jnp.where(sees_pages, entry, FAR).min(axis=1)
    end = jnp.where(sees_pages, entry + -(-keys // page), 0).max(axis=1)
    first = jnp.minimum(first, end)
    # Whole for all: one context alone, and no further than its most restricted token sees.
    alone = jnp.where(real, context, FAR).min(axis=1) == jnp.where(real, context, -1).max(axis=1)
    whole = jnp.where(alone, jnp.where(real, entry + keys // page, FAR).min(axis=1), first)
    own = jnp.where(sees_own, blocks(queries.first_own), FAR).min(axis=1)
    own_end = jnp.where(sees_own, blocks(queries.index) + 1, 0).max(axis=1)
    return BlockTable(first, jnp.clip(whole, first, end), end, jnp.minimum(own, own_end), own_end)
