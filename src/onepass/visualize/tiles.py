"""The tiles of attention that a step computes: counted from the table that the kernel walks, and by the rule itself.

A tile is a block of asking tokens against a page of context keys, or against a block of the step's own keys:

             pages (context keys)   own keys (items)
    block 0  # # .                  . . . .          # visited   . not visited
    block 1  # # #                  # # . .

`visited_tiles` reads the kernel's ranges (`attention.block_table`), `visible_tiles` asks the visibility rule of every
pair of token and key. A kernel may visit more than the rule needs, never less.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from onepass.attention.base import Attention, Step, StepShape
from onepass.attention.block_table import BlockTable, block_table
from onepass.attention.mask import visible
from onepass.attention.reference import Reference, fit_block
from onepass.engine.packing import Packed
from onepass.engine.programs.step_arrays import unpack
from onepass.kernels.cpu.attention import StepTables

BLOCK = 64  # asking tokens, of kernels whose table has another form


@dataclass(frozen=True)
class TileGrid:
    """Which tiles are visited: [blocks, entries of the page table] and [blocks, blocks of own keys]. `whole` are those
    of `pages` that need no mask, since every token of the block sees every key."""

    block: int
    page: int
    pages: np.ndarray
    own: np.ndarray
    whole: np.ndarray

    @property
    def count(self) -> int:
        return int(self.pages.sum() + self.own.sum())

    @property
    def pairs(self) -> int:
        """Pairs of a token and a key in these tiles."""
        return self.block * (self.page * int(self.pages.sum()) + self.block * int(self.own.sum()))

    def contains(self, other: "TileGrid") -> bool:
        return not ((other.pages & ~self.pages).any() or (other.own & ~self.own).any())


@dataclass(frozen=True)
class StepTiles:
    """The tiles of one step: those that the kernel visits and those in which the rule shows some token some key."""

    visited: TileGrid
    visible: TileGrid
    visible_pairs: int


def step_tiles(attention: Attention, shape: StepShape, packed: Packed, dense_block: int = BLOCK) -> StepTiles:
    """`dense_block`: tokens of a block where the kernel has none, to be drawn beside one that has."""
    step, _, _ = unpack(jnp.asarray(packed.numbers), shape)
    visited = visited_tiles(attention, step, shape, dense_block)
    seen, pairs = visible_tiles(step, shape, visited.block)
    return StepTiles(visited, seen, pairs)


def visited_tiles(attention: Attention, step: Step, shape: StepShape, dense_block: int = BLOCK) -> TileGrid:
    """What the kernel walks. The reference (mask `dense`) has no table: every token asks every key."""
    if isinstance(attention, Reference):
        block = fit_block(shape.tokens, dense_block)
        blocks = shape.tokens // block
        pages = np.ones((blocks, shape.entries), bool)
        return TileGrid(block, shape.page, pages, np.ones((blocks, blocks), bool), np.zeros_like(pages))
    table = _table(attention, step, shape)
    first, whole, end, own, own_end = (np.asarray(a)[:, None] for a in vars(table).values())
    blocks = len(first)
    block = shape.tokens // blocks
    entry, key = np.arange(shape.entries), np.arange(blocks)
    return TileGrid(
        block,
        shape.page,
        (entry >= first) & (entry < end),
        (key >= own // block) & (key < -(-own_end // block)) & (own < own_end),
        (entry >= first) & (entry < whole),
    )


def visible_tiles(step: Step, shape: StepShape, block: int) -> tuple[TileGrid, int]:
    """By the rule alone, and how many pairs of a token and a key it allows."""
    places = step.queries.places
    blocks = shape.tokens // block
    pages = np.asarray(visible(places, step.pages.places(shape.page)))
    own = np.asarray(visible(places, step.own_keys))
    pairs = int(pages.sum() + own.sum())
    pages = pages.reshape(blocks, block, shape.entries, shape.page)
    own = own.reshape(blocks, block, blocks, block)
    grid = TileGrid(block, shape.page, pages.any((1, 3)), own.any((1, 3)), _whole(pages, places.segment, block))
    return grid, pairs


def _whole(pages: np.ndarray, segment: object, block: int) -> np.ndarray:
    """Tiles in which every real token of the block sees every key."""
    real = np.asarray(segment).reshape(-1, block) >= 0
    return (pages.all(3) | ~real[:, :, None]).all(1) & pages.any((1, 3))


def _table(attention: Attention, step: Step, shape: StepShape) -> BlockTable:
    """The kernel's own table, where it is one; else that of the function which all kernels' tables are made by."""
    prepared = attention.prepare(step.queries, step, shape)
    if isinstance(prepared, BlockTable):
        return prepared
    if isinstance(prepared, StepTables):
        return BlockTable(*prepared.blocks)
    return block_table(step.queries, fit_block(shape.tokens, BLOCK), shape.page)
