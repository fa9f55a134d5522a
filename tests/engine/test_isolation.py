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
# Sixteen items whose halves fall into the standard request's bucket.
MANY = ITEMS + items_of([6, 2, 10, 3, 8, 1, 5, 8], 3)


def with_item(index: int, item: Ids) -> list[Ids]:
    return [*ITEMS[:index], item, *ITEMS[index + 1 :]]


def same_length(index: int) -> list[Ids]:
    return with_item(index, tokens(len(ITEMS[index]), 900 + index))


def follower_in_row(way: str, index: int) -> bool:
    """Whether a later item shares the row of this one, and so could see it if isolation were broken."""
    return (index + 1) % 4 != 0 if way == "chunked" else index + 1 < len(ITEMS)


@DTYPES
@EVERY_WAY
def test_no_item_sees_a_same_length_mutation_of_another(
    tiny_of: Callable[[str, str], Tiny], way: str, dtype: str
) -> None:
    """Every index is mutated in turn; all numbers of all others are the same bits."""
    tiny = tiny_of("llama3", dtype)
    before = numbers(tiny.run(way, QUERY, ITEMS))
    for index in range(len(ITEMS)):
        after = numbers(tiny.run(way, QUERY, same_length(index)))
        others = [i for i in range(len(ITEMS)) if i != index]
        assert (after[others] == before[others]).all(), f"mutating item {index} changed another"
        assert difference(after[index], before[index]) > LEAK, "the mutation itself must show"


@EVERY_WAY
def test_the_mutation_check_catches_a_plain_causal_mask(tiny: Tiny, way: str) -> None:
    before = numbers(tiny.run(way, QUERY, ITEMS, leaking=True))
    for index in range(len(ITEMS)):
        after = numbers(tiny.run(way, QUERY, same_length(index), leaking=True))
        others = [i for i in range(len(ITEMS)) if i != index]
        off = difference(after[others], before[others])
        assert off > LEAK if follower_in_row(way, index) else off == 0


@EVERY_WAY
def test_a_plain_causal_mask_does_not_give_the_serial_scores(tiny: Tiny, way: str) -> None:
    off = np.abs(np.array(tiny.run(way, QUERY, ITEMS, leaking=True).scores) - tiny.serial(QUERY, ITEMS))
    assert off[0].max() <= FLOAT32, "the first item of a row has nothing before it to see"
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
