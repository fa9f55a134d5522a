"""Requests drawn at random (counts, lengths, label sets, options, modes): every one scores as serial does."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.tiny import FLOAT32, QUERY, WAYS, Ids, Tiny, difference
from onepass.api import ScoreResult

MOST_TOKENS = 32  # with at most 12 items this bounds the buckets, and so what must be compiled
TOKEN = st.integers(3, 499)


@st.composite
def items_drawn(draw: st.DrawFn) -> list[Ids]:
    items = draw(st.lists(st.lists(TOKEN, max_size=10), min_size=1, max_size=12))
    while sum(map(len, items)) > MOST_TOKENS:
        items.pop()
    return items or [[7]]


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    items = draw(items_drawn())
    labels = st.lists(TOKEN, min_size=1, max_size=4, unique=True)
    softmax = draw(st.booleans())
    return {
        "items": items,
        "label_token_ids": draw(labels) if draw(st.booleans()) else [draw(labels) for _ in items],
        "apply_softmax": softmax,
        "temperature": draw(st.floats(0.5, 10.0)) if softmax else 1.0,
        "label_mass": draw(st.booleans()),
        "delimiter_token_id": draw(st.none() | TOKEN),
    }


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(fields=requests())
def test_any_request_scores_as_serial_does(tiny: Tiny, way: str, fields: dict[str, Any]) -> None:
    found = tiny.run(way, QUERY, **fields)
    wanted = tiny.scorer().score(QUERY, mode="serial", **fields)
    assert_same(found, wanted)


def assert_same(found: ScoreResult, wanted: ScoreResult) -> None:
    assert found.label_token_ids == wanted.label_token_ids
    assert (found.logprobs is None) == (wanted.logprobs is None)
    for row, row_wanted in zip(found.scores, wanted.scores, strict=True):
        assert difference(row, row_wanted) <= FLOAT32
    if found.label_mass is not None:
        assert difference(found.label_mass, wanted.label_mass) <= FLOAT32
