"""Which tiles of keys a block of tokens visits in `hopper`: a line of numbers a block, made once for all layers.

    full tiles     every token of the block sees every key: no mask. The first of the prefix and of the row's context.
    masked tiles   the end of the prefix, the context's diagonal, and the items' own keys, which need not begin at a
                   whole tile: the rule is asked in the kernel.

The rule is asked here too, through `tiles`; nothing of size T×T exists.
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from onepass.attention.base import RowShape
from onepass.attention.places import PADDING, Places, visible
from onepass.attention.tiles import Reach, Tiling, context_tiles, item_tiles

KEYS = 128  # of a tile
FINE = 16  # tokens: how finely the beginning of the items' keys is known

# Columns of the table. Tiles come in the order: parts of the prefix, parts of the context, items, full ones.
PREFIX_FULL, CONTEXT_FULL, PREFIX_PARTS, CONTEXT_PARTS, ITEM_TILES, ITEMS_FROM, COLUMNS = 0, 1, 2, 3, 4, 5, 8


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Plan:
    """`table` has a line for each block of tokens. `keys` are the places of the prefix, from `context_at` on of the row
    as context (its items are padding there), from `items_at` on of the row as items: a key is counted in only one."""

    table: Int[Array, "rows blocks columns"]
    asking: Places
    keys: Places
    context_at: int = field(metadata={"static": True})
    items_at: int = field(metadata={"static": True})


def plan_of(own: Places, prefix: Places | None, shape: RowShape, block: int) -> Plan:
    own = padded_places(own, block)
    tiling = Tiling(asking=block, wide=KEYS, narrow=FINE, asking_block=block, key_block=KEYS)
    rows, blocks = own.segment.shape[0], own.segment.shape[1] // block

    def counts(keys: Places | None) -> tuple[Array, Array]:
        """Tiles that all tokens of a block see whole, and those that some see partly."""
        if keys is None or not keys.segment.shape[-1]:
            return (jnp.zeros((rows, blocks), jnp.int32),) * 2
        some, whole = context_tiles(own, keys, -(-keys.segment.shape[-1] // KEYS), tiling, visible)
        full = whole.sum(axis=-1, dtype=jnp.int32)
        return full, some.sum(axis=-1, dtype=jnp.int32) - full

    index = jnp.arange(own.segment.shape[-1])
    as_context, as_items = (_only(own, kept) for kept in (index < shape.context, index >= shape.context))
    prefix_full, prefix_parts = counts(prefix)
    context_full, context_parts = counts(own.take(0, shape.context))
    items_from, item_count = _item_span(own, as_items, shape, tiling)
    # A block of padding visits a tile that it does not see: what it computes must be numbers, too.
    nothing = prefix_full + prefix_parts + context_full + context_parts + item_count == 0
    columns = [prefix_full, context_full, prefix_parts, context_parts, item_count + nothing, items_from]
    spare = [jnp.zeros_like(prefix_full)] * (COLUMNS - len(columns))
    parts = [padded_places(part, KEYS, KEYS) for part in (as_context, as_items)]
    before = 0
    if prefix is not None:
        parts.insert(0, padded_places(prefix, KEYS))
        before = parts[0].segment.shape[-1]
    keys = jax.tree.map(lambda *a: jnp.concatenate(a, axis=-1), *parts)
    return Plan(jnp.stack([*columns, *spare], axis=-1), own, keys, before, before + parts[-1].segment.shape[-1])


def _item_span(own: Places, items: Places, shape: RowShape, tiling: Tiling) -> tuple[Array, Array]:
    """Where the item keys that a block sees begin (0 where it sees none), and how many tiles they fill."""
    seen = item_tiles(own, items, Reach(shape.context, shape.band if shape.items else 0), tiling, visible)
    rows, fine, window = seen.shape
    together = tiling.asking // FINE
    if not window:
        return (jnp.zeros((rows, fine // together), jnp.int32),) * 2
    number = jnp.arange(fine)[:, None] - jnp.arange(window)
    first = jnp.where(seen, number, fine).min(axis=-1).reshape(rows, -1, together).min(axis=-1)
    last = jnp.where(seen, number, -1).max(axis=-1).reshape(rows, -1, together).max(axis=-1)
    count = jnp.maximum(last + 1 - first, 0) * FINE
    return jnp.where(count > 0, first * FINE, 0).astype(jnp.int32), (-(-count // KEYS)).astype(jnp.int32)


def padded_places(places: Places, multiple: int, more: int = 0) -> Places:
    """To a multiple of tokens, and so many more."""
    spare = -places.segment.shape[-1] % multiple + more
    if not spare:
        return places
    return jax.tree.map(lambda a: jnp.pad(a, ((0, 0), (0, spare)), constant_values=PADDING), places)


def _only(places: Places, kept: Array) -> Places:
    """The same places, those not kept as padding."""
    return Places(jnp.where(kept, places.segment, PADDING), places.parent, places.position)
