"""A block of asking tokens walks the tiles of keys that its ranges name: which they are, their copies to the chip, and
the masks of those that not every token sees whole. What is done with a tile's scores is `softmax`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Int

from onepass.attention.block_table import BlockTable
from onepass.attention.mask import PADDING, Places
from onepass.kernels.tpu.pages import Order, by_head
from onepass.kernels.tpu.softmax import HeadShape, Keys, Softmax

TILE = 128  # tokens of a page, of a tile of own keys and of a part of a block

Rule = Callable[[Places, Places], Bool[Array, "..."]]


@dataclass(frozen=True)
class Plan:
    """What the kernel is specialised on."""

    heads: HeadShape
    block: int  # asking tokens
    rule: Rule

    @property
    def order(self) -> Order:
        return Order.of(self.heads.kv_heads, self.heads.head_dim)

    @property
    def chunk(self) -> int:
        """Tiles that are copied and computed together: fewer where a device has many KV heads."""
        return 4 if self.heads.kv_heads <= 8 else 2 if self.heads.kv_heads <= 16 else 1


def divided(a: Array, by: int) -> Array:
    """a // by for a power of two. In a kernel `//` asks for the sign, and that for the machine's own chip."""
    return a >> (by.bit_length() - 1)


def cover(a: Array, by: int) -> Array:
    """How many parts of a power of two cover it."""
    return divided(a + by - 1, by)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Scalars:
    """All that the kernel decides by."""

    numbers: Int[Array, " 3"]  # layer, real asking tokens, real tokens of the step
    blocks: BlockTable
    parts: BlockTable  # of 128 asking tokens each
    page: Int[Array, " entries"]
    context: Int[Array, " entries"]
    start: Int[Array, " entries"]
    length: Int[Array, " entries"]


@dataclass(frozen=True)
class Tiles:
    """The list of tiles that a block visits: pages, then own ones."""

    first: Array  # entry
    pages: Array
    whole: Array  # pages, from the first, that need no mask
    own: Array  # tile
    count: Array

    @classmethod
    def of(cls, table: BlockTable, at: Array) -> "Tiles":
        first, own, own_end = table.first[at], table.own[at], table.own_end[at]
        pages = table.end[at] - first
        own_tiles = jnp.where(own_end > own, cover(own_end, TILE) - divided(own, TILE), 0)
        return cls(first, pages, table.whole[at] - first, divided(own, TILE), pages + own_tiles)

    def within(self, other: "Tiles", kind: Array) -> tuple[Array, Array]:
        """Where its pages (kind 0) or own tiles (kind 1) begin and end in another block's list that has them too."""
        page, own = self.first - other.first, self.own - other.own + other.pages
        begin = jnp.where(kind == 0, page, own)
        return begin, begin + jnp.where(kind == 0, self.pages, self.count - self.pages)


@dataclass(frozen=True)
class Copies:
    """Chunks of tiles on their way to the chip, into one of two buffers."""

    plan: Plan
    scalars: Scalars
    own: tuple[Any, Any]
    pool: tuple[Any, Any]
    buffers: tuple[Any, Any]
    arrived: Any

    def start(self, block: Array, chunk: Array | int, buffer: Array | int) -> None:
        tiles = Tiles.of(self.scalars.blocks, block)

        def one(slot: Array, n: Array) -> None:
            pl.when(n < tiles.pages)(lambda: self._page(tiles.first + n, buffer, slot))
            pl.when(n >= tiles.pages)(lambda: self._own(tiles.own + n - tiles.pages, buffer, slot))

        self.each(tiles, chunk, one)

    def each(self, tiles: Tiles, chunk: Array | int, do: Callable[[Array, Array], None]) -> None:
        """`do(slot, number)` for the tiles of a chunk."""
        first = chunk * self.plan.chunk
        count = jnp.clip(tiles.count - first, 0, self.plan.chunk)
        jax.lax.fori_loop(0, count, lambda slot, _: do(slot, first + slot), None)

    def _page(self, entry: Array, buffer: Any, slot: Array) -> None:
        for source, to in zip(self.pool, self.buffers, strict=True):
            page = source.at[self.scalars.numbers[0], self.scalars.page[entry]]
            pltpu.make_async_copy(page, to.at[buffer, slot], self.arrived.at[buffer]).start()

    def _own(self, tile: Array, buffer: Any, slot: Array) -> None:
        some = self.plan.order.of_tokens(pl.ds(pl.multiple_of(tile * TILE, TILE), TILE))
        for source, to in zip(self.own, self.buffers, strict=True):
            pltpu.make_async_copy(source.at[some], to.at[buffer, slot], self.arrived.at[buffer]).start()

    def wait(self, buffer: Array, slot: Array) -> None:
        for to in self.buffers:  # of a copy that is waited for only its size counts
            there = to.at[buffer, slot]
            pltpu.make_async_copy(there, there, self.arrived.at[buffer]).wait()


@dataclass(frozen=True)
class Walk:
    """One block of asking tokens over its tiles."""

    plan: Plan
    scalars: Scalars
    softmax: Softmax
    copies: Copies
    keys: Keys
    places: Any  # of the asking tokens, [4, block, lanes], the same in all lanes
    own: tuple[Any, Any]  # segment and position of own keys, a tile a row

    def run(self, block: Array, blocks: Array | int, turns: Array) -> Array:
        """How many chunks have been taken by then, those of the blocks before included."""
        tiles = Tiles.of(self.scalars.blocks, block)
        chunks = cover(tiles.count, self.plan.chunk)

        def one(chunk: Array, _: None) -> None:
            buffer = (turns + chunk) & 1
            ends = chunk + 1 == chunks
            pl.when(jnp.logical_not(ends))(lambda: self.copies.start(block, chunk + 1, 1 - buffer))
            pl.when(ends & (block + 1 < blocks))(lambda: self.copies.start(block + 1, 0, 1 - buffer))
            self.copies.each(tiles, chunk, lambda slot, _: self.copies.wait(buffer, slot))
            self.copies.each(tiles, chunk, lambda slot, n: self._apart(tiles, n, buffer, slot))
            whole = (chunk + 1) * self.plan.chunk <= tiles.whole
            pl.when(whole)(lambda: self.softmax.add(self.keys, pl.ds(0, self.plan.block), None))
            pl.when(jnp.logical_not(whole))(lambda: self._parts(block, tiles, chunk))

        jax.lax.fori_loop(0, chunks, one, None)
        return turns + chunks

    def _apart(self, tiles: Tiles, n: Array, buffer: Array, slot: Array) -> None:
        """A tile's heads one after another. Values that are not there are 0: a weight of 0 times anything is not."""
        _, length = self._entry(tiles, n)
        some = pl.ds(pl.multiple_of(slot * TILE, TILE), TILE)
        for tile, to in zip(self.copies.buffers, (self.keys.k, self.keys.v), strict=True):
            heads = by_head(tile.at[buffer, slot], self.plan.order)
            if to is self.keys.v:
                there = jax.lax.broadcasted_iota(jnp.int32, heads.shape, 2 if self.keys.columns else 1) < length
                heads = jnp.where(there, heads, jnp.zeros_like(heads))
            to[(slice(None), slice(None), some) if self.keys.columns else (slice(None), some)] = heads

    def _entry(self, tiles: Tiles, n: Array) -> tuple[Array, Array]:
        """The entry of the page table and how many keys are there; of an own tile, the latter."""
        entry = jnp.minimum(tiles.first + n, self.scalars.page.shape[0] - 1)
        own = jnp.clip(self.scalars.numbers[2] - (tiles.own + n - tiles.pages) * TILE, 0, TILE)
        return entry, jnp.where(n < tiles.pages, self.scalars.length[entry], own)

    def _parts(self, block: Array, tiles: Tiles, chunk: Array) -> None:
        """For every part of the block those tiles of the chunk that it sees some of, two at a time."""
        in_block, first = self.plan.block // TILE, chunk * self.plan.chunk

        def one(both: Array, _: None) -> None:
            part, kind = both >> 1, both & 1
            begin, end = Tiles.of(self.scalars.parts, block * in_block + part).within(tiles, kind)
            begin, end = jnp.maximum(begin, first), jnp.minimum(end, first + self.plan.chunk)

            def two(pair: Array, _: None) -> None:
                n = begin + 2 * pair
                pl.when(n + 1 < end)(lambda: self._masked(tiles, n, n - first, part, 2))
                pl.when(n + 1 == end)(lambda: self._masked(tiles, n, n - first, part, 1))

            jax.lax.fori_loop(0, cover(jnp.maximum(end - begin, 0), 2), two, None)

        jax.lax.fori_loop(0, 2 * in_block, one, None)

    def _masked(self, tiles: Tiles, n: Array, slot: Array, part: Array, count: int) -> None:
        rows = pl.ds(pl.multiple_of(part * TILE, TILE), TILE)
        some = pl.ds(pl.multiple_of(slot * TILE, TILE), count * TILE)
        asking = Places(*(self.places[kind, rows] for kind in range(4)))
        keys = Keys(self.keys.k, self.keys.v, self.keys.columns, some)
        self.softmax.add(keys, rows, [self.plan.rule(asking, self._key_places(tiles, n + i)) for i in range(count)])

    def _key_places(self, tiles: Tiles, n: Array) -> Places:
        entry, length = self._entry(tiles, n)
        within = jax.lax.broadcasted_iota(jnp.int32, (1, TILE), 1)
        is_page = n < tiles.pages
        own = jnp.clip(tiles.own + n - tiles.pages, 0, self.own[0].shape[0] - 1)
        there = jnp.where(is_page, self.scalars.context[entry], self.own[0][pl.ds(own, 1)])
        segment = jnp.where(within < length, there, PADDING)
        position = jnp.where(is_page, self.scalars.start[entry] + within, self.own[1][pl.ds(own, 1)])
        return Places(segment, segment, segment, position)
