"""Which tiles of keys a block of asking tokens visits: a line of numbers a block, made once a step for all layers.

    masked tiles   pages that some tokens see partly, and the step's own keys (items, branches), which need not begin at
                   a whole tile: the rule is asked in the kernel
    whole tiles    pages of which every token of the block sees every key: no mask

What is visited comes from `block_table`; the number of blocks that are computed is data, too.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from onepass.attention.base import Queries, Step
from onepass.attention.block_table import BlockTable, block_table
from onepass.attention.mask import PADDING, Places
from onepass.kernels.hopper.pool_write import write_groups

KEYS = 128  # of a tile: a page
FINE = 16  # tokens: own keys begin at a multiple, their places are copied by TMA
# Tokens up to the next multiple are computed, so that all of them are numbers: tiles of own keys hold some that nobody
# sees, and 0 · NaN is not 0.
SAFE = 128

# Columns of a line. Tiles come in the order: masked pages, own keys, whole pages.
WHOLE, PARTS, OWN_TILES, FIRST_ENTRY, OWN_FROM, COLUMNS = 0, 1, 2, 3, 4, 8
BLOCKS = 0  # the first line's number: how many blocks are computed


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Schedule:
    """`table` begins with a line of its own, then has one for each block. `keys` are the places of the page table's
    entries, then of the step's tokens. `writes` are `pool_write`'s."""

    table: Int[Array, "lines columns"]
    asking: Places
    keys: Places
    writes: Int[Array, " groups"]


def schedule_of(queries: Queries, step: Step, block: int) -> Schedule:
    queries = _in_blocks(queries, block)
    lines = block_lines(block_table(queries, block, KEYS))
    blocks = lines.shape[0]
    computed = jnp.minimum(-(-queries.count // SAFE) * (SAFE // block), blocks)
    head = jnp.zeros((1, COLUMNS), jnp.int32).at[0, BLOCKS].set(computed)
    keys = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), step.pages.places(KEYS), step.own_keys)
    return Schedule(jnp.concatenate([head, lines]), queries.places, keys, write_groups(step.slots))


def block_lines(ranges: BlockTable) -> Int[Array, "blocks columns"]:
    whole, parts = ranges.whole - ranges.first, ranges.end - ranges.whole
    # From the end backwards: a tile that began at the first key could end beyond the last computed token.
    own_end = -(-ranges.own_end // FINE) * FINE
    tiles = -(-(own_end - ranges.own // FINE * FINE) // KEYS)
    tiles = jnp.where(ranges.own < ranges.own_end, tiles, 0)
    own_from = jnp.maximum(own_end - tiles * KEYS, 0)
    # The kernel takes a block's first tile to be a masked one. Where all are whole, one is masked for nothing; a block
    # of padding visits a tile that it does not see: what it computes must be numbers.
    unmasked = parts + tiles == 0
    borrowed = unmasked & (whole > 0)
    columns = {
        WHOLE: whole - borrowed.astype(jnp.int32),
        PARTS: parts + borrowed.astype(jnp.int32),
        OWN_TILES: tiles + (unmasked & ~borrowed).astype(jnp.int32),
        FIRST_ENTRY: ranges.first,
        OWN_FROM: jnp.where(unmasked, 0, own_from),
    }
    none = jnp.zeros_like(whole)
    return jnp.stack([columns.get(n, none) for n in range(COLUMNS)], axis=-1).astype(jnp.int32)


def _in_blocks(queries: Queries, block: int) -> Queries:
    """With padding up to whole blocks."""
    spare = -queries.index.shape[0] % block
    if not spare:
        return queries

    def pad(a: Array, value: int) -> Array:
        return jnp.pad(a, (0, spare), constant_values=value)

    places = jax.tree.map(lambda a: pad(a, PADDING), queries.places)
    return Queries(
        places, pad(queries.index, 0), pad(queries.first_entry, 0), pad(queries.context_keys, 0),
        pad(queries.first_own, 1), queries.count,
    )  # fmt: skip
