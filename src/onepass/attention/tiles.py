"""Which key tiles each asking tile visits, as tables of numbers that a kernel reads from scalar memory.

A tile that no token of an asking tile may see is not visited. Keys are taken in two ways, told apart by their column:

    context columns   in wide tiles, asked by large tiles. Every token sees the context up to its own position, so the
                      latest token of a tile tells what any of them sees and the earliest what all of them see:
                      O(asking tiles · context). A tile that all see whole needs no mask.
    item columns      in narrow tiles, asked by tiles as narrow. They lie at most `band` places back, so each asks a
                      window of a few: O(T · (narrow + band)).

In both the rule itself is asked; this module only knows where it can be true. Nothing of size T×T is computed. The
tables are made inside the program: places are there already, the bounds follow from `RowShape`, and XLA moves the work
out of the loop over layers. What is done with a visited tile is left to `pallas_tpu`.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from onepass.attention.places import PADDING, Places
from onepass.attention.reference import Rule

SKIPPED, PARTLY, WHOLE = 0, 1, 2


@dataclass(frozen=True)
class Tiling:
    """Sizes in tokens. Tiles are what a product is made of; blocks are what is copied to the chip's memory at once."""

    asking: int  # tokens that ask a wide tile together
    wide: int  # keys of a wide tile
    narrow: int  # tokens that ask a narrow tile together, and its keys
    asking_block: int
    key_block: int

    def __post_init__(self) -> None:
        nested = (
            (self.asking, self.narrow),
            (self.wide, self.narrow),
            (self.asking_block, self.asking),
            (self.key_block, self.wide),
        )
        if any(part < 1 or size < part or size % part for size, part in nested):
            raise ValueError(f"blocks must be made of whole tiles, and other tiles of narrow ones; got {self}")


@dataclass(frozen=True)
class Reach:
    """What may be seen among some keys, as far as the row's shape tells."""

    context: int  # the first keys, which are context tokens or padding
    band: int  # how far back an item token sees items. 0: these keys are not the asking tokens' own, or hold no items

    def wide_tiles(self, tiling: Tiling) -> int:
        """Wide tiles that hold context keys; the last may hold the first items too."""
        return -(-self.context // tiling.wide)

    def window(self, tiling: Tiling) -> int:
        """Narrow tiles that may hold item keys seen by a narrow tile of tokens: its own and those before."""
        return 1 + -(-(self.band - 1) // tiling.narrow) if self.band else 0

    def most_blocks(self, tiling: Tiling, keys: int) -> int:
        """Key blocks that an asking block may need."""
        for_items = (tiling.asking_block + self.window(tiling) * tiling.narrow) // tiling.key_block + 2
        for_context = -(-self.context // tiling.key_block)
        return min(-(-keys // tiling.key_block), for_context + (for_items if self.band else 0))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TileTable:
    """For one array of keys. `wide` says SKIPPED, PARTLY or WHOLE of each wide tile; `narrow` says SKIPPED or PARTLY of
    the tile that lies n tiles before the asking one. `blocks` are the key blocks that an asking block goes through;
    where there are more steps the last is repeated, which is then neither copied nor worked on again."""

    wide: Int[Array, "rows asking_tiles wide_tiles"]
    narrow: Int[Array, "rows narrow_tiles window"]
    blocks: Int[Array, "rows asking_blocks steps"]


def tile_table(asking: Places, keys: Places, reach: Reach, tiling: Tiling, steps: int, rule: Rule) -> TileTable:
    """`asking` and `keys` are padded to whole tiles of both kinds; where the keys are the asking tokens, alike."""
    wide_tiles, ratio = reach.wide_tiles(tiling), tiling.wide // tiling.narrow
    some, whole = context_tiles(asking, keys.take(0, reach.context), wide_tiles, tiling, rule)
    items = item_tiles(asking, keys, reach, tiling, rule)
    number = _key_tiles(items.shape[1], items.shape[2])
    if reach.context % tiling.wide and reach.band:  # items begin in the last wide tile, and are asked for there
        begun = (items & (number >= (wide_tiles - 1) * ratio) & (number < wide_tiles * ratio)).any(axis=-1)
        last = begun.reshape(begun.shape[0], -1, tiling.asking // tiling.narrow).any(axis=-1)
        some = some.at[..., -1].set(some[..., -1] | last)
    wide = jnp.where(whole, WHOLE, jnp.where(some, PARTLY, SKIPPED)).astype(jnp.int32)
    narrow = jnp.where(items & (number >= wide_tiles * ratio), PARTLY, SKIPPED).astype(jnp.int32)
    return TileTable(wide, narrow, _blocks(wide, narrow, keys.segment.shape[-1], tiling, steps))


def _key_tiles(asked: int, window: int) -> np.ndarray:
    """[asked, window] which key tile each place of the window is; negative before the row's beginning."""
    return np.arange(asked)[:, None] - np.arange(window)


def context_tiles(
    asking: Places, context: Places, wide_tiles: int, tiling: Tiling, rule: Rule
) -> tuple[Bool[Array, "rows asking_tiles wide_tiles"], Bool[Array, "rows asking_tiles wide_tiles"]]:
    """Which wide tiles hold context keys that some token sees, and which are context that every token sees."""
    tiles = _tiles(asking, tiling.asking)
    real = tiles.segment != PADDING
    spare = wide_tiles * tiling.wide - context.segment.shape[-1]

    def asked_by(token: Int[Array, "rows asking_tiles"]) -> Array:
        one = jax.tree.map(lambda a: jnp.take_along_axis(a, token[..., None], axis=-1)[..., 0], tiles)
        seen = rule(one, context) & real.any(axis=-1, keepdims=True)
        return jnp.pad(seen, ((0, 0), (0, 0), (0, spare))).reshape(*real.shape[:2], wide_tiles, tiling.wide)

    latest = jnp.argmax(jnp.where(real, tiles.position, -1), axis=-1)
    earliest = jnp.argmin(jnp.where(real, tiles.position, jnp.iinfo(jnp.int32).max), axis=-1)
    return asked_by(latest).any(axis=-1), asked_by(earliest).all(axis=-1)


def item_tiles(
    asking: Places, keys: Places, reach: Reach, tiling: Tiling, rule: Rule
) -> Bool[Array, "rows narrow_tiles window"]:
    """The rule on each narrow tile of tokens and each key tile of its window."""
    tiles, key_tiles = _tiles(asking, tiling.narrow), _tiles(keys, tiling.narrow)
    real = tiles.segment != PADDING
    asked = real.shape[1]

    def seen(back: int) -> Array:
        def shifted(a: Array) -> Array:
            return jnp.pad(a, ((0, 0), (back, 0), (0, 0)), constant_values=PADDING)[:, :asked]

        return (rule(tiles, jax.tree.map(shifted, key_tiles)) & real[..., None]).any(axis=(-2, -1))

    window = reach.window(tiling)
    none = jnp.zeros((*real.shape[:2], 0), bool)
    return jnp.stack([seen(back) for back in range(window)], axis=-1) if window else none


def _blocks(wide: Array, narrow: Array, keys: int, tiling: Tiling, steps: int) -> Array:
    """The key blocks that some tile of each asking block visits, in order, the last one repeated up to `steps`."""
    rows, asked = wide.shape[0], -(-narrow.shape[1] * tiling.narrow // tiling.asking_block)
    count = -(-keys // tiling.key_block)
    if count == 1:
        return jnp.zeros((rows, asked, steps), jnp.int32)

    def needed(visited: Array, asking_size: int, block: np.ndarray) -> Array:
        """`block` says in which key block each entry of `visited` lies."""
        in_block = ((visited != SKIPPED)[..., None] & (block[..., None] == np.arange(count))).any(axis=-2)
        down = tiling.asking_block // asking_size
        in_block = jnp.pad(in_block, ((0, 0), (0, -in_block.shape[1] % down), (0, 0)))
        return in_block.reshape(rows, asked, down, count).any(axis=2)

    of_wide = np.arange(wide.shape[2]) // (tiling.key_block // tiling.wide)
    of_narrow = _key_tiles(*narrow.shape[1:]) // (tiling.key_block // tiling.narrow)
    marked = needed(wide, tiling.asking, of_wide) | needed(narrow, tiling.narrow, of_narrow)
    # The n-th marked block has as many blocks before it as have seen at most n marks.
    so_far = jnp.cumsum(marked, axis=-1, dtype=jnp.int32)
    wanted = jnp.minimum(jnp.arange(steps), jnp.maximum(so_far[..., -1:] - 1, 0))
    number = jnp.sum(so_far[..., None, :] <= wanted[..., None], axis=-1, dtype=jnp.int32)
    return jnp.where(number < count, number, 0)  # where none is marked, any will do


def _tiles(places: Places, size: int) -> Places:
    return jax.tree.map(lambda a: a.reshape(a.shape[0], -1, size), places)
