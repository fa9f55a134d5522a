"""A cancelled request costs no more steps, and stops nobody else's."""

import time
from concurrent.futures import Future

from engine.tiny import FLOAT32, ITEMS, QUERY, Tiny, difference, items_of, tokens
from onepass.api import ScoreResult
from onepass.scorer import Scorer

OTHER = tokens(20, 70)


def test_a_cancelled_request_does_not_stop_the_engine(tiny: Tiny, small_steps: Scorer) -> None:
    futures: list[Future[ScoreResult]] = [
        small_steps.submit(tiny.request(query, items_of([2] * 600, 74), mode="extend")) for query in (QUERY, OTHER)
    ]
    assert all(future.cancel() for future in futures)
    result = small_steps.submit(tiny.request(QUERY, ITEMS, mode="extend")).result(60)
    assert difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32


def test_a_cancelled_request_costs_no_more_steps(tiny: Tiny, small_steps: Scorer) -> None:
    small_steps.score_many([tiny.request(QUERY, ITEMS, mode="extend")])
    before = small_steps.engine.totals.steps
    large = small_steps.submit(tiny.request(QUERY, items_of([2] * 6_000, 75), mode="extend"))
    while small_steps.engine.totals.steps == before:
        time.sleep(0.001)
    assert large.cancel()
    small_steps.score_many([tiny.request(QUERY, ITEMS, mode="extend")])
    assert small_steps.engine.totals.steps - before < 60, "of 188"
    assert not small_steps.engine._scheduler.waiting


def test_a_context_that_nobody_waits_for_any_more_is_not_computed(tiny: Tiny, small_steps: Scorer) -> None:
    """It takes many steps of 64 tokens; the request that wanted it is cancelled after the first."""
    long = tokens(1_000, 76)
    before = small_steps.engine.totals.steps
    future = small_steps.submit(tiny.request(long, ITEMS, mode="extend"))
    while small_steps.engine.totals.steps == before:
        time.sleep(0.001)
    assert future.cancel()
    small_steps.score_many([tiny.request(QUERY, ITEMS, mode="extend")])
    assert not small_steps.engine._scheduler.waiting
    assert small_steps.engine.contexts.find(tuple(long)) is None
