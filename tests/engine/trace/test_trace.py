"""`return_trace`: the steps of a request add up to its usage and timings, have its own places, and name nobody else."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drawn_requests import requests
from engine.fake_device import FakeEngine
from engine.tiny import ITEMS, QUERY, WAYS, Tiny, items_of, tokens
from onepass.api import ScoreRequest, ScoreResult, Usage
from onepass.engine.job import Job
from onepass.engine.trace.recorder import MAX_SEGMENTS, MAX_STEPS
from onepass.errors import RequestError
from onepass.trace import Trace, TraceStep

SHARED = ("number", "rung", "all_tokens", "computed_tokens", "launched_ms", "collected_ms", "device_ms", "compilations")
NOTHING = dict.fromkeys(SHARED, 0)


def traced(tiny: Tiny, mode: str, **options: Any) -> ScoreResult:
    scorer = tiny.scorer(**options)
    scorer.engine.contexts.clear()
    return scorer.score_many([tiny.request(QUERY, ITEMS, mode=mode, return_trace=True)])[0]


def outcome(job: Job) -> tuple[Trace, Usage]:
    info = job.future.result(0).info
    assert info.trace is not None
    return info.trace, info.usage


def own(step: TraceStep) -> TraceStep:
    """What is the request's, without what the step's other requests change."""
    return replace(step, **NOTHING)


@pytest.mark.parametrize("way", [*WAYS, "serial"])
def test_steps_add_up_to_usage_and_timings(tiny: Tiny, way: str) -> None:
    mode, options = WAYS.get(way, ("serial", {}))
    result = traced(tiny, mode, **options)
    assert result.trace is not None
    steps = result.trace.steps
    assert sum(step.tokens for step in steps) == result.usage.computed_tokens
    assert sum(step.device_ms for step in steps) == pytest.approx(result.timings.device_ms)
    assert steps[0].launched_ms == pytest.approx(result.timings.queue_ms)
    assert sum(step.compilations for step in steps) == result.timings.compilations
    assert sum(step.readouts for step in steps) == len(ITEMS)
    assert len({step.number for step in steps}) == len(steps) == {"serial": len(ITEMS), "extend": 2}.get(way, 1)
    for step in steps:
        assert step.launched_ms <= step.collected_ms <= result.timings.total_ms
        assert step.tokens == step.all_tokens <= step.computed_tokens <= step.rung
        assert sum(segment.tokens for segment in step.segments) == step.tokens


def test_a_kept_context_is_told_as_cached(tiny: Tiny) -> None:
    scorer = tiny.scorer()
    traced(tiny, "packed")
    result = scorer.score_many([tiny.request(QUERY, ITEMS, return_trace=True)])[0]
    assert result.trace is not None
    (step,) = result.trace.steps
    assert step.cached_tokens == result.usage.cached_tokens == len(QUERY)
    assert step.pages_read == -(-len(QUERY) // result.trace.page)


def test_places_are_those_of_context_and_items(tiny: Tiny) -> None:
    result = traced(tiny, "packed")
    assert result.trace is not None
    context, *items = result.trace.steps[0].segments
    assert (context.first, context.tokens, context.position, context.item) == (0, len(QUERY), 0, None)
    assert context.segment == context.parent == context.context == 0
    assert [one.tokens for one in items] == list(map(len, ITEMS))
    assert [one.item for one in items] == list(range(len(ITEMS)))
    assert {(one.parent, one.context, one.position) for one in items} == {(0, 0, len(QUERY))}
    assert len({one.segment for one in items}) == len(ITEMS)


def test_a_trace_names_nothing_of_neighbours(tiny: Tiny) -> None:
    """In the same step before and after it; their segments, lengths and number leave no trace."""
    scorer = tiny.scorer()
    alone = traced(tiny, "packed")
    scorer.engine.contexts.clear()
    others = [tiny.request(tokens(9, 50 + n), items_of([5, 7, 1], 60 + n), mode="packed") for n in range(4)]
    ours = tiny.request(QUERY, ITEMS, mode="packed", return_trace=True)
    first, _, beside, *_ = scorer.score_many([*others[:2], ours, *others[2:]])
    assert first.trace is None
    assert alone.trace is not None
    assert beside.trace is not None
    assert beside.trace.steps[0].all_tokens > beside.trace.steps[0].tokens, "the step was shared"
    assert tuple(map(own, beside.trace.steps)) == tuple(map(own, alone.trace.steps))


def test_nothing_is_recorded_unless_asked_for(tiny: Tiny) -> None:
    result = tiny.scorer().score(QUERY, ITEMS, label_token_ids=tiny.labels)
    assert result.trace is None
    assert "trace" not in result.to_dict()


@pytest.mark.parametrize("wrong", [1, "yes", None])
def test_another_type_is_refused(tiny: Tiny, wrong: Any) -> None:
    with pytest.raises(RequestError, match="return_trace must be true or false"):
        tiny.scorer().score(QUERY, ITEMS, label_token_ids=tiny.labels, return_trace=wrong)


def test_a_trace_is_bounded() -> None:
    engine = FakeEngine()
    items = [[n] for n in range(MAX_SEGMENTS + 10)]
    job = engine.submit(ScoreRequest(query=[1], items=items, label_token_ids=[1], mode="packed", return_trace=True))
    engine.drive()
    trace, usage = outcome(job)
    assert len(trace.steps) == MAX_STEPS
    assert trace.omitted_steps == len(engine.device.steps) - MAX_STEPS
    assert sum(len(step.segments) for step in trace.steps) <= MAX_SEGMENTS
    assert usage.computed_tokens == len(items) + 1


def test_segments_beyond_the_bound_are_counted() -> None:
    engine = FakeEngine()
    request = ScoreRequest(query=[1], items=[[n] for n in range(30)], label_token_ids=[1], return_trace=True)
    job = engine.submit(request)
    assert job.trace is not None
    job.trace.segments_left = 7
    engine.drive()
    trace, _ = outcome(job)
    assert sum(len(step.segments) for step in trace.steps) == 7
    assert trace.omitted_segments == 31 - 7
    assert sum(step.tokens for step in trace.steps) == 31


@settings(max_examples=60, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=4), st.integers(0, 3))
def test_any_trace_covers_its_request(asked: list[ScoreRequest], chosen: int) -> None:
    """Whatever the mode, item lengths, continuations and neighbours."""
    engine = FakeEngine()
    mine = chosen % len(asked)
    jobs = [engine.submit(replace(one, return_trace=n == mine)) for n, one in enumerate(asked)]
    engine.drive()
    trace, usage = outcome(jobs[mine])
    assert all(job.trace is None for job in jobs if job is not jobs[mine])
    assert sum(step.tokens for step in trace.steps) == usage.computed_tokens
    encoded = jobs[mine].encoded
    assert encoded is not None
    for step in trace.steps:
        numbers = {0} | {n for one in step.segments for n in (one.segment, one.parent, one.context)}
        assert numbers == set(range(len(numbers))), "numbered by the request's own segments alone"
        assert [one.first for one in step.segments] == _sums([one.tokens for one in step.segments])
        assert step.tokens <= step.all_tokens <= step.computed_tokens
    for item, text in enumerate(encoded.items):
        tokens = sum(one.tokens for step in trace.steps for one in step.segments if one.item == item)
        assert tokens >= len(text), "each item's tokens were computed"
    assert Trace.from_dict(trace.to_dict()) == trace


def _sums(lengths: list[int]) -> list[int]:
    return [sum(lengths[:n]) for n in range(len(lengths))]
