"""Many requests at once: right answers in order, bounded steps, no starving, and pages that come back.

Cancelled requests are `test_cancelling`; steps that fail are `test_failures`; when steps begin is `test_step_times`.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.fake_device import FakeEngine, is_right
from engine.tiny import FLOAT32, ITEMS, QUERY, Tiny, difference, items_of, tokens
from onepass.api import ScoreRequest, ScoreResult
from onepass.errors import OnepassError, RequestError
from onepass.scorer import Scorer


def test_64_concurrent_requests_of_mixed_sizes_score_as_serial(tiny: Tiny) -> None:
    scorer = tiny.scorer()
    sizes = [[7], [5, 0, 4], [len(item) for item in ITEMS], [3] * 40]
    requests = [
        tiny.request(
            QUERY if i % 3 else tokens(17 + i % 15, 100 + i),
            items_of(sizes[i % 4], 100 + i),
            mode=["auto", "extend", "packed", "extend"][i % 4],
        )
        for i in range(64)
    ]
    start = threading.Barrier(64)

    def ask(request: ScoreRequest) -> ScoreResult:
        start.wait()
        return scorer.score_many([request])[0]

    with ThreadPoolExecutor(64) as pool:
        results = list(pool.map(ask, requests))
    for request, result in zip(requests, results, strict=True):
        assert difference(result.scores, tiny.serial(request.query, request.items)) <= FLOAT32  # type: ignore[arg-type]


def test_a_bad_request_is_raised_to_its_caller_only(tiny: Tiny) -> None:
    scorer = tiny.scorer()
    good, bad = tiny.request(QUERY, ITEMS, mode="extend"), tiny.request(QUERY, [[10**6]])

    def ask(request: ScoreRequest) -> ScoreResult | RequestError:
        try:
            return scorer.submit(request).result(60)
        except RequestError as error:
            return error

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, [good, bad] * 4))
    assert {answer.code for answer in answers[1::2]} == {"token_id_out_of_range"}  # type: ignore[union-attr]
    for answer in answers[::2]:
        assert isinstance(answer, ScoreResult)
        assert difference(answer.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32


def test_a_mistake_among_several_requests_is_raised_before_any_runs(tiny: Tiny) -> None:
    scorer = tiny.scorer()
    scorer.engine.contexts.clear()
    with pytest.raises(RequestError):
        scorer.score_many([tiny.request(QUERY, ITEMS, mode="extend"), tiny.request([], ITEMS)])
    assert len(scorer.engine.contexts) == 0


def test_a_large_request_does_not_hold_up_small_ones(tiny: Tiny, small_steps: Scorer) -> None:
    small = tiny.request(QUERY, ITEMS, mode="extend")
    small_steps.score_many([small])
    large = small_steps.submit(tiny.request(QUERY, items_of([2] * 6_000, 71), mode="extend"))
    for _ in range(5):
        result = small_steps.submit(small).result(60)
        assert difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32
    assert not large.done()
    assert len(large.result(120).scores) == 6_000


def test_small_requests_do_not_starve_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new small request comes with every step, fills it and goes first, until the large one's age counts for more."""
    engine = FakeEngine()
    clock = time.perf_counter()
    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    fields: dict[str, Any] = {"label_token_ids": [1, 2], "mode": "packed"}
    large = engine.submit(ScoreRequest(query=list(range(100, 120)), items=[[n, 5] for n in range(80)], **fields))
    begun = ended = 0
    for step in range(1, 2000):
        clock += 1.0
        small = engine.submit(ScoreRequest(query=[step + 200], items=[[1, 2, 3, 4]] * 9 + [[1, 2, 3]], **fields))
        engine.turn()
        begun = begun or (step if large.started is not None else 0)
        if large.done:
            ended = step
            break
    engine.drive()
    assert 50 < begun <= ended
    assert is_right(large)
    assert is_right(small)


def check_many_items(tiny: Tiny, scorer: Scorer, count: int) -> None:
    """Items of one or two tokens, of which only 50 differ, so that every place can be checked."""
    kinds = items_of([1, 2] * 25, 73)
    order = np.random.default_rng(1).integers(0, 50, count)
    result = scorer.score_many([tiny.request(QUERY, [kinds[i] for i in order], mode="extend")])[0]
    assert difference(result.scores, tiny.serial(QUERY, kinds)[order]) <= FLOAT32
    assert result.usage.computed_tokens <= len(QUERY) + sum(len(kinds[i]) for i in order)
    assert result.timings.compilations <= 6


def test_20_000_items_come_back_in_order(tiny: Tiny) -> None:
    check_many_items(tiny, tiny.scorer(), 20_000)


@pytest.mark.slow
def test_100_000_items_come_back_in_order(tiny: Tiny) -> None:
    check_many_items(tiny, tiny.scorer(), 100_000)


def test_items_are_told_as_they_are_read_out(tiny: Tiny, small_steps: Scorer) -> None:
    items = items_of([2] * 200, 77)
    encoded = small_steps.engine.encoder.encode(tiny.request(QUERY, items, mode="extend"))
    told: dict[int, tuple[int, np.ndarray]] = {}
    future = small_steps.engine.submit_encoded(
        encoded, on_items=lambda first, last, read: told.update({first: (last, read.logits.copy())})
    )
    whole = future.result(60).read.logits
    assert len(told) > 5
    assert sorted(told) == [0, *sorted(last for last, _ in told.values())[:-1]], "every item once"
    for first, (last, logits) in told.items():
        assert np.array_equal(whole[3 * first : 3 * last], logits), "three labels each"


def test_a_closed_scorer_finishes_what_it_has_and_takes_no_more(tiny: Tiny) -> None:
    scorer = Scorer(tiny.model, tiny.weights, tiny.scorer().engine.config)
    future = scorer.submit(tiny.request(QUERY, ITEMS, mode="extend"))
    scorer.close()
    assert difference(future.result(0).scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32
    with pytest.raises(OnepassError, match="closed"):
        scorer.submit(tiny.request(QUERY, ITEMS))
    scorer.close()


def test_pages_come_back_after_any_mixture(tiny: Tiny) -> None:
    """Cancelled and refused requests, released and expired handles, two steps in flight, a pool of few pages."""
    config = replace(tiny.scorer().engine.config, steps_in_flight=2, cache_bytes=1 << 18)
    with Scorer(tiny.model, tiny.weights, config) as scorer:
        engine = scorer.engine
        free = engine.pages.free  # type: ignore[union-attr]
        handles = [
            scorer.prefill(tokens(200 + n, 90 + n), ttl_seconds=[0.001, 60][n % 2], pin=n == 3) for n in range(4)
        ]
        futures = []
        for n in range(60):
            query = tokens([20, 150, 500][n % 3], 200 + n % 7)
            futures.append(scorer.submit(tiny.request(query, items_of([3, 0, 300, 5], n), mode="auto")))
            if n % 4 == 0:
                futures[-1 - n // 8].cancel()
            if n % 10 == 3:
                with pytest.raises(RequestError):
                    scorer.score_many(
                        [tiny.request(None, ITEMS, context=handles[3].id), tiny.request([], ITEMS)]  # type: ignore[arg-type]
                    )
        scorer.release(handles[3])
        answers = [None if future.cancelled() else future.result(120) for future in futures]
        assert sum(answer is not None for answer in answers) > 40
        scorer.score_many([tiny.request(QUERY, ITEMS)])  # what was cancelled is off the device
        engine.contexts.clear()
        assert engine.pages.free == free  # type: ignore[union-attr]
