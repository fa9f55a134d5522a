"""The tiles that a kernel's table names are those that the visibility rule needs, counted pair by pair."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drawn_requests import requests
from engine.fake_device import LARGE, FakeEngine
from onepass.api import ScoreRequest
from onepass.attention.base import StepShape
from onepass.attention.reference import Reference
from onepass.attention.xla import Xla
from onepass.engine.packing import Packed
from onepass.engine.programs.step_arrays import unpack, views
from onepass.kernels.cpu.attention import CpuAttention
from onepass.visualize.tiles import StepTiles, step_tiles, visible_tiles

SMALL_BLOCKS = CpuAttention(group=1)  # fit_block finds 8 or 20 of the fake device's 16 and 40 tokens


def steps_of(*asked: ScoreRequest) -> list[tuple[StepShape, Packed]]:
    engine = FakeEngine()
    for request in asked:
        engine.submit(request)
    engine.drive()
    return engine.device.steps


def brute_force(shape: StepShape, packed: Packed, block: int) -> tuple[set[tuple[int, int]], set[tuple[int, int]], int]:
    """Tiles with a pair that may be seen, by a loop over all pairs; and how many pairs there are."""
    columns = [a.tolist() for a in views(packed.numbers, shape)]
    _, segment, parent, context, position = columns[:5]
    _, entry_context, entry_start, entry_length = columns[9:13]
    pages, own, pairs = set(), set(), 0
    for token in range(packed.num_tokens):
        related = {segment[token], parent[token], context[token]}
        for entry, (of, start, length) in enumerate(zip(entry_context, entry_start, entry_length, strict=True)):
            seen = sum(start + n <= position[token] for n in range(length)) if of in related else 0
            pairs += seen
            pages |= {(token // block, entry)} if seen else set()
        for key in range(packed.num_tokens):
            if segment[key] != context[key] and segment[key] in related and position[key] <= position[token]:
                pairs += 1
                own.add((token // block, key // block))
    return pages, own, pairs


def places_of(grid: np.ndarray) -> set[tuple[int, int]]:
    return set(zip(*map(np.ndarray.tolist, np.nonzero(grid)), strict=True))


@settings(max_examples=15, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=4))
def test_tiles_are_those_that_the_rule_needs(asked: list[ScoreRequest]) -> None:
    """Any requests side by side in any mode. Where an item has branches the table may name more: a branch does not see
    its neighbours, which lie between it and its item."""
    branches = any(request.continuations is not None for request in asked)
    for shape, packed in steps_of(*asked):
        tiles = step_tiles(SMALL_BLOCKS, shape, packed)
        pages, own, pairs = brute_force(shape, packed, tiles.visited.block)
        assert places_of(tiles.visible.pages) == pages
        assert places_of(tiles.visible.own) == own
        assert tiles.visible_pairs == pairs
        assert tiles.visited.contains(tiles.visible)
        assert (tiles.visited.pages == tiles.visible.pages).all()
        assert (tiles.visited.whole == tiles.visible.whole).all()
        assert branches or (tiles.visited.own == tiles.visible.own).all()


def test_every_kernels_table_gives_the_same_tiles() -> None:
    request = ScoreRequest(query=list(range(11)), items=[[1, 2, 3], [4], [5] * 9], label_token_ids=[1], mode="packed")
    ((shape, packed),) = steps_of(request)
    step, _, _ = unpack(jnp.asarray(packed.numbers), shape)
    for attention in (Xla(), CpuAttention(), SMALL_BLOCKS):
        tiles = step_tiles(attention, shape, packed)
        seen, _ = visible_tiles(step, shape, tiles.visited.block)
        assert tiles.visited.count == seen.count > 0


def test_the_dense_mask_computes_every_tile() -> None:
    request = ScoreRequest(query=list(range(11)), items=[[1, 2, 3], [4]], label_token_ids=[1], mode="packed")
    ((shape, packed),) = steps_of(request)
    tiles = step_tiles(Reference(page=shape.page), shape, packed, dense_block=8)
    blocks = shape.tokens // 8
    assert tiles.visited.count == blocks * (shape.entries + blocks)
    assert tiles.visited.pairs == shape.tokens * (shape.entries * shape.page + shape.tokens)
    assert tiles.visible.count < tiles.visited.count


def test_a_table_that_visits_too_little_would_be_noticed() -> None:
    """The negative control."""
    request = ScoreRequest(query=list(range(30)), items=[[1, 2, 3]], label_token_ids=[1], mode="packed")
    ((shape, packed),) = steps_of(request)
    assert shape == LARGE
    right: StepTiles = step_tiles(SMALL_BLOCKS, shape, packed)
    fewer = right.visited.pages.copy()
    fewer[-1, 0] = False
    assert right.visited.contains(right.visible)
    assert not replace(right.visited, pages=fewer).contains(right.visible)
