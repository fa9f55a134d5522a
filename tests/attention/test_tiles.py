"""A tile is visited if and only if the visibility rule lets some token of it see some key: counted by brute force."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention.packed_rows import Packed, packed_rows
from onepass.attention.base import RowShape
from onepass.attention.places import PADDING, Places, visible
from onepass.attention.tiles import PARTLY, SKIPPED, WHOLE, Reach, TileTable, Tiling, tile_table

TILING = Tiling(asking=16, wide=16, narrow=8, asking_block=32, key_block=32)
SHAPE = RowShape(rows=2, prefix=48, context=40, items=88, band=24, readouts=1, labels=1)
SOURCES = {"prefix": Reach(SHAPE.prefix, 0), "own": Reach(SHAPE.context, SHAPE.band)}


@functools.cache
def program(source: str):
    reach = SOURCES[source]

    def made(asking: Places, keys: Places) -> TileTable:
        steps = reach.most_blocks(TILING, keys.segment.shape[-1])
        return tile_table(asking, keys, reach, TILING, steps, visible)

    return jax.jit(made)


def table_of(rows: Packed, source: str) -> tuple[TileTable, np.ndarray]:
    """The table as numpy, and the rule on every pair of a token that is not padding and a key."""
    keys = rows.prefix if source == "prefix" else rows.own
    table = jax.tree.map(np.asarray, program(source)(rows.own, keys))
    seen = np.array(visible(rows.own, keys)) & (np.asarray(rows.own.segment) != PADDING)[..., None]
    return table, seen


def tiles_of(seen: np.ndarray, asking: int, keys: int) -> np.ndarray:
    """[rows, tiles, tiles] whether any pair is seen."""
    rows, tokens, width = seen.shape
    return seen.reshape(rows, tokens // asking, asking, width // keys, keys).any(axis=(2, 4))


def visited(table: TileTable, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Wide tiles visited; narrow tiles visited, by their column."""
    columns = np.zeros((*table.narrow.shape[:2], width // TILING.narrow), bool)
    for row, tile, back in np.argwhere(table.narrow != SKIPPED):
        assert tile >= back, "a tile before the row's beginning"
        columns[row, tile, tile - back] = True
    return table.wide != SKIPPED, columns


@pytest.mark.parametrize("source", list(SOURCES))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_visited_tiles_are_those_the_rule_allows(source: str, data: st.DataObject) -> None:
    table, seen = table_of(data.draw(packed_rows(SHAPE)), source)
    boundary = SOURCES[source].wide_tiles(TILING) * TILING.wide
    wide, narrow = visited(table, seen.shape[-1])
    np.testing.assert_array_equal(wide, tiles_of(seen[..., :boundary], TILING.asking, TILING.wide))
    expected = tiles_of(seen, TILING.narrow, TILING.narrow)
    expected[..., : boundary // TILING.narrow] = False
    np.testing.assert_array_equal(narrow, expected)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_tile_without_mask_is_seen_whole_by_every_token(data: st.DataObject) -> None:
    rows = data.draw(packed_rows(SHAPE))
    real = np.asarray(rows.own.segment) != PADDING
    for source in SOURCES:
        table, seen = table_of(rows, source)
        for row, tile, column in np.argwhere(table.wide == WHOLE):
            tokens = slice(tile * TILING.asking, (tile + 1) * TILING.asking)
            keys = slice(column * TILING.wide, (column + 1) * TILING.wide)
            assert seen[row, tokens, keys][real[row, tokens]].all()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_blocks_are_those_of_the_visited_tiles_and_then_repeat(data: st.DataObject) -> None:
    rows = data.draw(packed_rows(SHAPE))
    for source in SOURCES:
        table, seen = table_of(rows, source)
        for row, asking_block in np.ndindex(*table.blocks.shape[:2]):
            tokens = slice(asking_block * TILING.asking_block, (asking_block + 1) * TILING.asking_block)
            keys = np.flatnonzero(seen[row, tokens].any(axis=0))
            wanted = np.unique(keys // TILING.key_block)
            listed = table.blocks[row, asking_block]
            np.testing.assert_array_equal(listed[: len(wanted)], wanted)
            assert (listed[len(wanted) :] == (wanted[-1] if len(wanted) else 0)).all()


def items_in_a_row(count: int, length: int, context: int) -> Places:
    """`context` tokens, then `count` items, without padding."""
    segment = np.concatenate([np.zeros(context), np.repeat(np.arange(1, count + 1), length)])
    position = np.concatenate([np.arange(context), context + np.tile(np.arange(length), count)])
    return Places(*(jnp.array(a, jnp.int32)[None] for a in (segment, np.zeros_like(segment), position)))


def test_visited_tiles_grow_with_the_items_and_not_with_their_square() -> None:
    tiling = Tiling(asking=256, wide=512, narrow=128, asking_block=1024, key_block=1024)
    counts = []
    for items in (2560, 5120, 10240):
        places = items_in_a_row(items // 20, 20, 2048)
        table = jax.jit(lambda p: tile_table(p, p, Reach(2048, 32), tiling, 4, visible))(places)
        whole, narrow = int((table.wide == WHOLE).sum()), int((table.narrow == PARTLY).sum())
        assert whole == items // 256 * 4 + (0 + 0 + 1 + 1 + 2 + 2 + 3 + 3), "all of the context, or what lies before"
        counts.append(narrow)
    assert counts[2] < 2.05 * counts[1] < 4.2 * counts[0]
    assert counts[2] <= 2 * 10240 // 128, "a window of two tiles"


@pytest.mark.parametrize(
    "sizes", [(16, 24, 16, 32, 48), (24, 32, 16, 48, 32), (16, 32, 16, 24, 32), (16, 32, 16, 32, 48)]
)
def test_tiles_that_do_not_fit_into_each_other_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="whole tiles"):
        Tiling(*sizes)
