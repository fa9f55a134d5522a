"""A packed step, followed token by token: every token sees what the definition says, whatever shares its step."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drawn_requests import requests
from engine.fake_device import LARGE, FakeEngine, is_right
from onepass.api import ScoreRequest
from onepass.attention.base import StepShape
from onepass.engine.programs.ladder import Ladder
from onepass.engine.programs.step_arrays import sizes, views

QUERY = [50, 51, 52]
WIDE = Ladder((StepShape(tokens=32, readouts=8, pairs=8, entries=8, page=4),))
NAMES = (
    "tokens", "segment", "parent", "context", "position", "slots", "first_entry", "context_keys", "first_own",
    "page", "page_context", "page_start", "page_length", "readouts", "pair_at", "labels", "counts",
)  # fmt: skip


def packed(*asked: ScoreRequest, kept: list[int] | None = None) -> dict[str, list[int]]:
    """The arrays of the step that these requests share; the context `kept` is computed before."""
    engine = FakeEngine(WIDE)
    if kept is not None:
        engine.prefill(kept)
        engine.drive()
    jobs = [engine.submit(one) for one in asked]
    engine.drive()
    assert all(map(is_right, jobs))
    shape, step = engine.device.steps[0 if kept is None else 1]
    return {name: a.tolist() for name, a in zip(NAMES, views(step.numbers, shape), strict=True)}


def request(items: list[list[int]], **fields: Any) -> ScoreRequest:
    return ScoreRequest(**{"query": QUERY, "items": items, "label_token_ids": [7, 8], **fields})


def test_a_context_and_its_items_lie_one_after_another() -> None:
    step = packed(request([[1, 2], [3]]))
    assert step["tokens"][:7] == [50, 51, 52, 1, 2, 3, 0]
    assert step["segment"][:7] == [0, 0, 0, 32, 32, 33, -1]
    assert step["parent"][:7] == [0, 0, 0, 0, 0, 0, -1]
    assert step["position"][:6] == [0, 1, 2, 3, 4, 3]
    assert step["context_keys"][:7] == [1, 2, 3, 3, 3, 3, 0]
    assert step["first_own"][:7] == [1, 2, 3, 3, 3, 5, 7]
    assert step["counts"] == [6, 2]
    assert step["readouts"] == [4] + [5] * 7
    assert step["pair_at"][:4] == [0, 0, 1, 1]
    assert step["labels"][:4] == [7, 8, 7, 8]
    page = step["page"][0]
    assert step["slots"][:7] == [4 * page, 4 * page + 1, 4 * page + 2, -1, -1, -1, -1]
    assert (step["page_context"][:2], step["page_length"][:2]) == ([0, -1], [3, 0])


def test_branches_name_their_item() -> None:
    """Continuations of two tokens each: a branch holds all but the last token of its text."""
    step = packed(request([[1, 2]], continuations=[[60, 61], [70, 71]]))
    assert step["tokens"][:7] == [50, 51, 52, 1, 2, 60, 70]
    assert step["segment"][3:7] == [32, 32, 33, 34]
    assert step["parent"][3:7] == [0, 0, 32, 32]
    assert step["position"][3:7] == [3, 4, 5, 5]
    assert step["first_own"][3:7] == [3, 3, 3, 3]
    assert step["readouts"][:3] == [4, 5, 6]


def test_requests_in_a_step_have_segments_and_pages_of_their_own() -> None:
    step = packed(request([[1, 2]]), request([[3]], query=[60, 61, 62, 63, 64]))
    assert step["tokens"][:11] == [50, 51, 52, 1, 2, 60, 61, 62, 63, 64, 3]
    assert step["context"][:11] == [0] * 5 + [1] * 6
    assert step["segment"][:11] == [0, 0, 0, 32, 32, 1, 1, 1, 1, 1, 33]
    assert step["first_entry"][:11] == [0] * 5 + [1] * 6
    assert step["page_context"][:4] == [0, 1, 1, -1]
    assert step["page_start"][:3] == [0, 0, 4]
    assert step["page_length"][:4] == [3, 4, 1, 0]


def test_items_of_a_kept_context_read_its_pages() -> None:
    step = packed(request([[1, 2], []], mode="extend"), kept=QUERY)
    assert step["tokens"][:3] == [52, 1, 2], "the last token is computed again, for the empty item"
    assert step["slots"][:3] == [-1] * 3
    assert step["position"][:3] == [2, 3, 4]
    assert step["context_keys"][:3] == [3, 3, 3]
    assert step["readouts"][:2] == [0, 2]
    assert step["pair_at"][:4] == [1, 1, 0, 0]


def test_empty_items_are_read_once_however_many_there_are() -> None:
    step = packed(request([[]] * 100))
    assert step["counts"] == [3, 1]
    assert step["readouts"] == [2] * 8


def test_a_step_is_one_array() -> None:
    assert [len(a) for a in views(np.zeros(sum(sizes(LARGE))), LARGE)] == list(sizes(LARGE))


@pytest.mark.parametrize("in_flight", [1, 2])
@settings(max_examples=60, deadline=None)
@given(asked=st.lists(requests(), min_size=1, max_size=6), again=st.booleans())
def test_every_token_sees_what_the_definition_says(in_flight: int, asked: list[ScoreRequest], again: bool) -> None:
    """Side by side, with contexts that others have left; then all pages come back."""
    engine = FakeEngine(in_flight=in_flight)
    for _ in range(1 + again):
        jobs = [engine.submit(one) for one in asked]
        engine.drive()
        assert all(map(is_right, jobs))
    assert engine.all_pages_are_free()
