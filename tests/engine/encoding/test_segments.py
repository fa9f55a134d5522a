"""Items and continuations as flat arrays, and what is read at each of their tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onepass.api import ScoreRequest
from onepass.engine.encoding.encode import Encoded, Encoder
from onepass.engine.encoding.segments import FROM_CONTEXT, LONG_FAMILY, FamilyLimit, Segments, item_starts, segments_of

WIDE = FamilyLimit(10_000, 10_000)


def encoded(items: list[list[int]], **fields: object) -> Encoded:
    request = ScoreRequest(**{"query": [1], "items": items, "label_token_ids": [7, 8], **fields})  # type: ignore[arg-type]
    return Encoder(None, 1000, 10_000).encode(request)


def pairs_of(made: Segments) -> list[list[int]]:
    """The labels read at each read-out."""
    return [part.tolist() for part in np.split(made.labels, made.pair_starts[1:-1])]


def test_items_lie_one_after_another() -> None:
    made = segments_of(encoded([[5, 6], [], [9]]), WIDE)
    assert made.tokens.tolist() == [5, 6, 9]
    assert made.starts.tolist() == [0, 2, 2, 3]
    assert made.readouts.tolist() == [1, FROM_CONTEXT, 2]
    assert pairs_of(made) == [[7, 8]] * 3
    assert made.num_families == 3


def test_a_continuation_is_a_branch_of_all_but_its_last_token() -> None:
    made = segments_of(encoded([[5, 6]], continuations=[[10, 11, 12], [20]]), WIDE)
    assert made.tokens.tolist() == [5, 6, 10, 11]
    assert made.parents.tolist() == [-1, 0]
    assert made.offsets.tolist() == [0, 2]
    # Labels and first tokens are read at the item's end; the others along the branch.
    assert made.readouts.tolist() == [1, 2, 3]
    assert pairs_of(made) == [[7, 8, 10, 20], [11], [12]]
    assert made.targets.tolist() == [0, 1, 2, 5, 3, 4]


def test_apart_every_continuation_follows_a_copy_of_its_item() -> None:
    made = segments_of(encoded([[5, 6]], continuations=[[10, 11], [20, 21]]), WIDE, apart=True)
    assert made.tokens.tolist() == [5, 6, 10, 5, 6, 20]
    assert made.num_families == 2
    assert (made.parents == -1).all()


def test_families_stay_short_however_many_continuations_there_are() -> None:
    made = segments_of(encoded([[5, 6]], continuations=[[9] * 50] * 40), WIDE)
    assert made.family_tokens().max() <= LONG_FAMILY
    assert made.num_families == 8
    assert (made.parents == -1).sum() == made.num_families, "the item is repeated at the head of each"


def test_a_long_item_takes_more_continuations_along() -> None:
    """Repeating a long item costs more than a longer family."""
    made = segments_of(encoded([[5] * 200], continuations=[[9] * 51] * 12), WIDE)
    assert made.num_families == 1


@pytest.mark.parametrize("limit", [FamilyLimit(60, 1000), FamilyLimit(1000, 40)], ids=str)
def test_a_family_that_no_step_holds_is_one_plain_segment_for_each_continuation(limit: FamilyLimit) -> None:
    made = segments_of(encoded([[5] * 20], continuations=[[9] * 50, [3, 4]]), limit)
    assert made.num_families == 2
    assert made.family_tokens().tolist() == [69, 21]
    assert (made.parents == -1).all()


LABELS = st.lists(st.integers(0, 900), min_size=1, max_size=5, unique=True)
TEXTS = st.lists(st.lists(st.integers(0, 900), min_size=1, max_size=120), min_size=1, max_size=8)


@given(
    items=st.lists(st.tuples(st.lists(st.integers(0, 900), max_size=9), LABELS), max_size=5),
    continuations=TEXTS,
    own=st.booleans(),
    apart=st.booleans(),
    with_labels=st.booleans(),
    limit=st.sampled_from([WIDE, FamilyLimit(64, 64), FamilyLimit(100, 64), FamilyLimit(64, 20)]),
)
def test_what_is_read_goes_where_it_belongs(
    items: list[tuple[list[int], list[int]]],
    continuations: list[list[int]],
    own: bool,
    apart: bool,
    with_labels: bool,
    limit: FamilyLimit,
) -> None:
    """Every pair is given its label's id as its value; in the order of results, each place must hold the id asked for
    there. No family with branches is larger than a step."""
    sets = [labels for _, labels in items]
    labels = {"label_token_ids": sets} if with_labels and sets else {"label_token_ids": None}
    # Items of their own: each the texts from its place on, and at least the last.
    texts = [continuations[min(i, len(continuations) - 1) :] if own else continuations for i in range(len(items))]
    request = encoded([item for item, _ in items], continuations=texts if own and items else continuations, **labels)
    made = segments_of(request, limit, apart)
    values = np.full(len(made.targets), -1)
    values[made.targets] = made.labels
    starts = item_starts(request)
    for at, end, wanted, each in zip(starts[:-1], starts[1:], request.labels, texts, strict=True):
        assert values[at:end].tolist() == [*wanted, *(token for text in each for token in text)]
    branched = np.diff(made.families) > 1
    assert (made.family_tokens()[branched] <= limit.tokens).all()
    assert (np.diff(made.readout_starts)[branched] <= limit.readouts).all()
    for first, last in zip(made.readout_starts[:-1], made.readout_starts[1:], strict=True):
        inside = made.readouts[first:last]
        inside = inside[inside != FROM_CONTEXT]
        assert (np.diff(inside) > 0).all(), "ascending, each once"


@pytest.mark.parametrize("apart", [False, True])
def test_read_outs_stand_before_the_token_they_predict(apart: bool) -> None:
    text = [10, 11, 12, 13]
    made = segments_of(encoded([[5, 6]], continuations=[text], label_token_ids=None), WIDE, apart)
    before = [int(made.tokens[at]) for at in made.readouts]
    assert before == [6, *text[:-1]]
    assert made.labels.tolist() == text
