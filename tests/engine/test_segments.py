"""Items and continuations as flat arrays, and what was read from them put back in order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onepass.api import ScoreRequest
from onepass.engine.encode import Encoded, Encoder
from onepass.engine.segments import FROM_CONTEXT, LONG_FAMILY, regroup, segments_of


def encoded(items: list[list[int]], **fields: object) -> Encoded:
    request = ScoreRequest(**{"query": [1], "items": items, "label_token_ids": [7, 8], **fields})  # type: ignore[arg-type]
    return Encoder(None, 1000, 10_000).encode(request)


def test_items_lie_one_after_another() -> None:
    made = segments_of(encoded([[5, 6], [], [9]]))
    assert made.tokens.tolist() == [5, 6, 9]
    assert made.starts.tolist() == [0, 2, 2, 3]
    assert made.readouts.tolist() == [1, FROM_CONTEXT, 2]
    assert made.labels.tolist() == [[7, 8]] * 3
    assert made.num_families == 3


def test_a_continuation_is_a_branch_of_all_but_its_last_token() -> None:
    made = segments_of(encoded([[5, 6]], continuations=[[10, 11, 12], [20]]))
    assert made.tokens.tolist() == [5, 6, 10, 11]
    assert made.parents.tolist() == [-1, 0]
    assert made.offsets.tolist() == [0, 2]
    # Labels and first tokens are read at the item's end, two a read-out; the others along the branch.
    assert made.readouts.tolist() == [1, 1, 2, 3]
    assert made.labels.tolist() == [[7, 8], [10, 20], [11, 0], [12, 0]]


def test_apart_every_continuation_follows_a_copy_of_its_item() -> None:
    made = segments_of(encoded([[5, 6]], continuations=[[10, 11], [20, 21]]), apart=True)
    assert made.tokens.tolist() == [5, 6, 10, 5, 6, 20]
    assert made.num_families == 2
    assert (made.parents == -1).all()


def test_families_stay_short_however_many_continuations_there_are() -> None:
    made = segments_of(encoded([[5, 6]], continuations=[[9] * 50] * 40))
    assert made.family_tokens().max() <= LONG_FAMILY
    assert made.num_families == 8
    assert (made.parents == -1).sum() == made.num_families, "the item is repeated at the head of each"


def test_a_long_item_takes_more_continuations_along() -> None:
    """Repeating a long item costs more than a longer family."""
    made = segments_of(encoded([[5] * 200], continuations=[[9] * 51] * 12))
    assert made.num_families == 1


LABELS = st.lists(st.integers(0, 900), min_size=1, max_size=5, unique=True)
TEXTS = st.lists(st.lists(st.integers(0, 900), min_size=1, max_size=120), min_size=1, max_size=8)


@given(
    items=st.lists(st.tuples(st.lists(st.integers(0, 900), max_size=9), LABELS), max_size=5),
    continuations=TEXTS,
    apart=st.booleans(),
    with_labels=st.booleans(),
)
def test_what_is_read_comes_back_where_it_belongs(
    items: list[tuple[list[int], list[int]]], continuations: list[list[int]], apart: bool, with_labels: bool
) -> None:
    """Every read-out is given its label's id as its value; regrouped, each place must hold the id asked for there."""
    sets = [labels for _, labels in items]
    labels = {"label_token_ids": sets} if with_labels and sets else {"label_token_ids": None}
    request = encoded([item for item, _ in items], continuations=continuations, **labels)
    made = segments_of(request, apart)
    label_values, tokens = regroup(request, made.labels.astype(np.float64), apart)
    assert label_values.shape[0] == len(items)
    for row, wanted in zip(label_values, request.labels, strict=True):
        assert row[: len(wanted)].tolist() == list(wanted)
    assert tokens == [[list(map(float, text)) for text in continuations]] * len(items)


@pytest.mark.parametrize("apart", [False, True])
def test_read_outs_stand_before_the_token_they_predict(apart: bool) -> None:
    text = [10, 11, 12, 13]
    made = segments_of(encoded([[5, 6]], continuations=[text], label_token_ids=None), apart)
    before = [int(made.tokens[at]) for at in made.readouts]
    assert before == [6, *text[:-1]]
    assert made.labels[:, 0].tolist() == text
