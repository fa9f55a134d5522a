"""An item's score depends on nothing else: not on other items, their lengths, order or number, nor on batch mates.

Each check has its negative control: with the visibility rule off (`leaking`), the same comparison must fail.
"""

from collections.abc import Callable

import numpy as np
import pytest

from engine.tiny import BFLOAT16, FLOAT32, ITEMS, LEAK, QUERY, WAYS, Ids, Tiny, difference, items_of, numbers, tokens

EVERY_WAY = pytest.mark.parametrize("way", WAYS)
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
TOLERANCE = {"float32": FLOAT32, "bfloat16": BFLOAT16}
MANY = ITEMS + items_of([6, 2, 10, 3, 8, 1, 5, 8], 3)


def with_item(index: int, item: Ids) -> list[Ids]:
    return [*ITEMS[:index], item, *ITEMS[index + 1 :]]


def same_length(index: int) -> list[Ids]:
    return with_item(index, tokens(len(ITEMS[index]), 900 + index))


def cold(tiny: Tiny, way: str, items: list[Ids], leaking: bool = False) -> np.ndarray:
    """All numbers, with the context computed anew: a kept one makes a step that lies otherwise, and rounds so."""
    tiny.scorer(leaking, **WAYS[way][1]).engine.contexts.clear()
    return numbers(tiny.run(way, QUERY, items, leaking=leaking))


@DTYPES
@EVERY_WAY
def test_no_item_sees_a_same_length_mutation_of_another(
    tiny_of: Callable[[str, str], Tiny], way: str, dtype: str
) -> None:
    """Every index is mutated in turn; all numbers of all others are the same bits."""
    tiny = tiny_of("llama3", dtype)
    before = cold(tiny, way, ITEMS)
    for index in range(len(ITEMS)):
        after = cold(tiny, way, same_length(index))
        others = [i for i in range(len(ITEMS)) if i != index]
        assert (after[others] == before[others]).all(), f"mutating item {index} changed another"
        assert difference(after[index], before[index]) > LEAK, "the mutation itself must show"


@EVERY_WAY
def test_the_mutation_check_catches_a_plain_causal_mask(tiny: Tiny, way: str) -> None:
    before = cold(tiny, way, ITEMS, leaking=True)
    for index in range(len(ITEMS)):
        after = cold(tiny, way, same_length(index), leaking=True)
        others = [i for i in range(len(ITEMS)) if i != index]
        off = difference(after[others], before[others])
        assert off > LEAK if index + 1 < len(ITEMS) else off == 0, "later items of the step see it"


@EVERY_WAY
def test_a_plain_causal_mask_does_not_give_the_serial_scores(tiny: Tiny, way: str) -> None:
    off = np.abs(np.array(tiny.run(way, QUERY, ITEMS, leaking=True).scores) - tiny.serial(QUERY, ITEMS))
    if way != "chunked":  # there the first item sees the other copies of its context
        assert off[0].max() <= FLOAT32, "the first item of a step has nothing before it to see"
    assert off.max() > LEAK


@DTYPES
@EVERY_WAY
def test_no_item_sees_the_changed_length_of_another(tiny_of: Callable[[str, str], Tiny], way: str, dtype: str) -> None:
    tiny = tiny_of("llama3", dtype)
    before = np.array(tiny.run(way, QUERY, ITEMS).scores)
    for index in range(len(ITEMS)):
        length = len(ITEMS[index]) + (1 if index % 2 else -1)
        after = np.array(tiny.run(way, QUERY, with_item(index, tokens(length, 800 + index))).scores)
        others = [i for i in range(len(ITEMS)) if i != index]
        assert difference(after[others], before[others]) <= TOLERANCE[dtype], f"item {index}"


@DTYPES
@EVERY_WAY
def test_order_does_not_matter(tiny_of: Callable[[str, str], Tiny], way: str, dtype: str) -> None:
    tiny = tiny_of("llama3", dtype)
    before = np.array(tiny.run(way, QUERY, ITEMS).scores)
    for order in (list(range(8))[::-1], np.random.default_rng(5).permutation(8).tolist()):
        after = tiny.run(way, QUERY, [ITEMS[i] for i in order]).scores
        assert difference(after, before[order]) <= TOLERANCE[dtype]


@EVERY_WAY
def test_order_matters_to_a_plain_causal_mask(tiny: Tiny, way: str) -> None:
    before = np.array(tiny.run(way, QUERY, ITEMS, leaking=True).scores)
    after = tiny.run(way, QUERY, ITEMS[::-1], leaking=True).scores
    assert difference(after, before[::-1]) > LEAK


@EVERY_WAY
def test_splitting_a_request_does_not_matter(tiny: Tiny, way: str) -> None:
    whole = tiny.run(way, QUERY, MANY).scores
    parts = tiny.run(way, QUERY, MANY[:8]).scores + tiny.run(way, QUERY, MANY[8:]).scores
    assert difference(whole, parts) <= FLOAT32
    assert difference(whole, tiny.serial(QUERY, MANY)) <= FLOAT32


@EVERY_WAY
def test_batch_mates_do_not_matter(tiny: Tiny, way: str) -> None:
    """Three requests of the same shape with other tokens, which share the steps of the fourth."""
    mode, options = WAYS[way]
    scorer = tiny.scorer(**options)
    alone = tiny.run(way, QUERY, ITEMS).scores
    mates = [
        tiny.request(tokens(20, 60 + i), items_of([len(item) for item in ITEMS], 60 + i), mode=mode) for i in range(3)
    ]
    # From cold, so that the context too is computed beside others'.
    scorer.engine.contexts.clear()
    together = scorer.score_many([*mates[:2], tiny.request(QUERY, ITEMS, mode=mode), *mates[2:]])
    assert difference(together[2].scores, alone) <= FLOAT32
    for mate, result in zip([mates[0], mates[1], mates[2]], [together[0], together[1], together[3]], strict=True):
        assert difference(result.scores, tiny.serial(mate.query, mate.items)) <= FLOAT32  # type: ignore[arg-type]


def neighbours(seed: int, lengths: dict[int, list[int]]) -> list[tuple[Ids, list[Ids]]]:
    """Queries and items of other requests; every token depends on the seed, no length does."""
    return [(tokens(query, seed + query), items_of(items, seed + query)) for query, items in lengths.items()]


OTHERS = {30: [7, 0, 5], 25: [4], 70: [0], 33: [1, 2, 3]}


def in_one_step(tiny: Tiny, seed: int, at: int, mode: str, leaking: bool) -> np.ndarray:
    """All numbers of the standard request between others, in one step from cold."""
    scorer = tiny.scorer(leaking)
    scorer.engine.contexts.clear()
    mates = [tiny.request(query, items, mode=mode) for query, items in neighbours(seed, OTHERS)]
    before = scorer.engine.totals.steps
    results = scorer.score_many([*mates[:at], tiny.request(QUERY, ITEMS[:4], mode=mode), *mates[at:]])
    assert scorer.engine.totals.steps - before == 1, "all of them share a step"
    return numbers(results[at])


@DTYPES
@pytest.mark.parametrize("mode", ["packed", "chunked"])
@pytest.mark.parametrize("at", [0, 2, 4])
def test_no_request_sees_another_in_its_step(
    tiny_of: Callable[[str, str], Tiny], mode: str, dtype: str, at: int
) -> None:
    """Every token of every other request is another, of the same lengths: the same bits. All of them have items in the
    step that computes their context."""
    tiny = tiny_of("llama3", dtype)
    before = in_one_step(tiny, 5000, at, mode, leaking=False)
    for seed in (6000, 7000):
        assert (in_one_step(tiny, seed, at, mode, leaking=False) == before).all()
    off = np.abs(before[:, :3] - tiny.serial(QUERY, ITEMS[:4])).max()
    assert off <= TOLERANCE[dtype]


@pytest.mark.parametrize("mode", ["packed", "chunked"])
def test_without_isolation_a_request_sees_others_in_its_step(tiny: Tiny, mode: str) -> None:
    """The negative control. Requests lie in a step by their size; a later one's items see all before them."""
    off = [
        difference(in_one_step(tiny, 5000, at, mode, leaking=True), in_one_step(tiny, 6000, at, mode, leaking=True))
        for at in (0, 2, 4)
    ]
    assert min(off) > LEAK


def test_where_a_request_lies_in_a_step_and_beside_whom_matters_little(tiny: Tiny) -> None:
    """The order of sums may: 1e-5 in probabilities. Neighbours of other lengths move it to other offsets."""
    scorer = tiny.scorer()
    wanted = tiny.serial(QUERY, ITEMS[:4])
    for length in (1, 2, 3, 5, 8, 13, 31, 32, 33, 60, 64, 65, 100, 127, 128, 150):
        scorer.engine.contexts.clear()
        mate = tiny.request(tokens(length, 8000 + length), items_of([3, 0], 8000), mode="packed")
        first = [tiny.request(QUERY, ITEMS[:4], mode="packed"), mate]
        results = [scorer.score_many(order) for order in (first, first[::-1])]
        found = [results[0][0].scores, results[1][1].scores]
        assert all(difference(scores, wanted) <= FLOAT32 for scores in found)
