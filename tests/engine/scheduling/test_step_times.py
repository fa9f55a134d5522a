"""When a step begins: before the one in flight ends, with all that came meanwhile, whatever one step once took."""

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.tiny import FLOAT32, ITEMS, QUERY, Tiny, difference, tokens
from onepass.api import ScoreRequest, ScoreResult
from onepass.attention.base import StepShape
from onepass.engine.packing import Packed
from onepass.engine.runner import StepOutput
from onepass.engine.scheduling import step_loop
from onepass.engine.scheduling.step_stats import InFlightStep
from onepass.engine.scheduling.step_times import StepTimes
from onepass.scorer import Scorer

SECONDS = 2.0


class Slow:
    """A result that is there only at its time."""

    def __init__(self, read: Any, at: float) -> None:
        self.read, self.at = np.asarray(read), at

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        time.sleep(max(0.0, self.at - time.perf_counter()))
        return self.read

    def is_ready(self) -> bool:
        return time.perf_counter() >= self.at


@pytest.fixture
def slow(tiny: Tiny) -> Iterator[tuple[Scorer, list[float], list[int]]]:
    """A scorer as on an accelerator whose steps take `SECONDS`; when each was launched, and its tokens."""
    config = replace(tiny.scorer().engine.config, steps_in_flight=2)
    with Scorer(tiny.model, tiny.weights, config) as scorer:
        runner, launches, sizes = scorer.engine.runner, [], []
        done_at: list[float] = []
        for count in (1, 2):  # compiled
            scorer.engine.contexts.clear()
            scorer.score_many([tiny.request(QUERY, ITEMS, mode="packed")] * count)
        run = runner.run

        def slow_run(shape: StepShape, packed: Packed, *rest: Any) -> StepOutput:
            output = run(shape, packed, *rest)
            launches.append(time.perf_counter())
            sizes.append(packed.num_tokens)
            at = max(launches[-1], *done_at[-1:], 0.0) + SECONDS  # one step after another
            done_at.append(at)
            logits = [Slow(array, at) for array in output.logits]
            return StepOutput(logits, Slow(output.vocabulary, at))  # type: ignore[arg-type]

        runner.run = slow_run  # type: ignore[method-assign]
        scorer.engine._scheduler.times.seconds.clear()
        yield scorer, launches, sizes


def in_flight(scorer: Scorer, request: ScoreRequest, launches: list[float]) -> "Future[ScoreResult]":
    """Of a request that the device has, and nothing else."""
    scorer.engine.contexts.clear()
    launches.clear()
    future = scorer.submit(request)
    while not launches:
        time.sleep(0.001)
    return future


def test_a_request_that_comes_during_a_step_is_launched_before_the_step_ends(
    tiny: Tiny, slow: tuple[Scorer, list[float], list[int]]
) -> None:
    """Else the device would wait for its launch."""
    scorer, launches, _ = slow
    request = tiny.request(QUERY, ITEMS, mode="packed")
    for _ in range(2):  # the first time nobody knows how long a step takes
        first = in_flight(scorer, request, launches)
        time.sleep(0.3 * SECONDS)
        second = scorer.submit(request)
        results = [future.result(60) for future in (first, second)]
        assert all(difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32 for result in results)
    learnt = list(scorer.engine._scheduler.times.seconds.values())
    assert launches[1] - launches[0] < SECONDS
    assert all(0.9 * SECONDS < seconds < 1.2 * SECONDS for seconds in learnt), "a step behind another took as long"
    assert len(learnt) == 2


def test_requests_that_come_during_a_step_share_the_next(
    tiny: Tiny, slow: tuple[Scorer, list[float], list[int]]
) -> None:
    """Launched one by one they would be as many steps, and small steps cost more a token."""
    scorer, launches, sizes = slow
    requests = [tiny.request(tokens(20, 80 + n), ITEMS, mode="packed") for n in range(3)]
    scorer.score_many(requests[:1])
    sizes.clear()
    futures = [in_flight(scorer, requests[0], launches)]
    for request in requests[1:]:
        time.sleep(0.05 * SECONDS)
        futures.append(scorer.submit(request))
    results = [future.result(60) for future in futures]
    assert sizes == [63, 126]
    for request, result in zip(requests, results, strict=True):
        assert difference(result.scores, tiny.serial(request.query, ITEMS)) <= FLOAT32  # type: ignore[arg-type]


@pytest.mark.parametrize(("took", "left"), [(10.0, 7.0), (0.004, 0.001), (0.002, -0.001), (None, -0.003)])
def test_the_next_step_is_looked_for_near_the_end_of_one_and_in_time_to_be_launched(
    took: float | None, left: float, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, shape = tiny.scorer().engine._scheduler, tiny.scorer().engine.ladder.largest
    none = np.zeros(0, np.int32)
    packed = Packed(none, 100, 0, [], none, none)
    now = time.perf_counter()
    launched = InFlightStep(1, shape, [], packed, StepOutput([], None), [], [], [], now, now, 0)
    known = {} if took is None else {(256, 16 * 100 // 256): took}
    monkeypatch.setattr(scheduler.times, "seconds", known)
    monkeypatch.setattr(scheduler.times, "launches", deque())
    assert left - 0.5 < scheduler.times.until_nearly_done(launched) <= left
    monkeypatch.setattr(scheduler.times, "free_at", launched.at + 5)
    behind = scheduler.times.until_nearly_done(launched)
    assert left + 4.5 < behind <= left + 5, "behind another, it began when that was done"
    scheduler.times.launches.extend([0.001, 8.0])
    assert left + 4.5 < scheduler.times.until_nearly_done(launched), "one that was slow changes nothing"
    scheduler.times.launches.append(8.0)
    assert scheduler.times.until_nearly_done(launched) <= (took or 0.0) + 5 - 8.0, "slow launches begin earlier"


def test_a_step_that_was_slow_once_is_not_waited_for_again(
    tiny: Tiny, slow: tuple[Scorer, list[float], list[int]]
) -> None:
    """With two steps always in flight none has the device to itself: only its being ready says how long it took."""
    scorer, launches, _ = slow
    request = tiny.request(QUERY, ITEMS, mode="packed")
    times = scorer.engine._scheduler.times
    scorer.score_many([request])
    times.seconds.update(dict.fromkeys(times.seconds, 50.0))
    first = in_flight(scorer, request, launches)
    second = scorer.submit(request)
    for future in (first, second):
        assert difference(future.result(30).scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32
    assert min(times.seconds.values()) < 50.0, "next time less is expected"


def step_of(number: int, at: float) -> InFlightStep:
    none = np.zeros(0, np.int32)
    shape = StepShape(256, 64, 128, 64, 16)
    return InFlightStep(
        number, shape, [], Packed(none, 100, 0, [], none, none), StepOutput([], None), [], [], [], at, at, 0
    )


def test_the_time_of_a_step_is_learnt_from_what_was_seen_of_it() -> None:
    """Exact where somebody waited for it and for the one before; else it is a bound, or says nothing. Where nobody has
    waited for two in a row, they are launched too late."""
    times, size = StepTimes(), step_of(0, 0.0).size
    assert times.expected(step_of(0, 0.0)) == 0.0
    times.collected(step_of(1, at=1.0), 11.0, waited=True)
    assert times.seconds[size] == 10.0
    times.collected(step_of(2, at=5.0), 23.0, waited=True)  # behind the first, until 23: 12
    assert times.seconds[size] == 10.5
    assert times.collected(step_of(3, at=6.0), 40.0, waited=False) == 17.0  # at most
    assert times.seconds[size] == 10.5
    assert times.free_at == 33.5, "as expected: nobody saw its end"
    times.collected(step_of(4, at=7.0), 40.0, waited=True)  # its beginning was not seen
    assert times.seconds[size] == 10.5
    times.collected(step_of(5, at=8.0), 46.0, waited=False)  # 6 at most
    assert times.seconds[size] == 6.0
    times.collected(step_of(6, at=9.0), 60.0, waited=False)
    assert times.seconds[size] == pytest.approx(5.4)


def test_the_device_is_not_taken_to_be_busy_for_as_long_as_nobody_looks() -> None:
    """A step that was done while the next was launched: that one began then, and not when it was noticed. Else every
    launch would come later than the one before, and the device would wait for it."""
    times = StepTimes()
    times.collected(step_of(1, at=0.0), 10.0, waited=True)
    times.collected(step_of(2, at=5.0), 23.0, waited=False)
    assert times.free_at == 20.0
    assert times.until_nearly_done(step_of(3, at=15.0)) == pytest.approx(27.0 - time.perf_counter(), abs=0.1)


def test_somebody_who_comes_while_a_step_runs_and_nobody_waits_is_launched_before_its_end(
    tiny: Tiny, slow: tuple[Scorer, list[float], list[int]]
) -> None:
    """Later than when the next step is looked for: nobody was there then."""
    scorer, launches, _ = slow
    request = tiny.request(QUERY, ITEMS, mode="packed")
    scorer.engine.contexts.clear()
    scorer.score_many([request])  # how long such a step takes
    first = in_flight(scorer, request, launches)
    time.sleep(0.75 * SECONDS)
    second = scorer.submit(request)
    for future in (first, second):
        assert difference(future.result(60).scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32
    assert launches[1] - launches[0] < SECONDS


def test_behind_a_step_callers_are_not_waited_for_past_its_end(
    tiny: Tiny, slow: tuple[Scorer, list[float], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device would have nothing to do, and nobody would take what it has done."""
    scorer, launches, _ = slow
    request = tiny.request(QUERY, ITEMS, mode="packed")
    scorer.engine.contexts.clear()
    scorer.score_many([request])  # how long such a step takes
    monkeypatch.setattr(step_loop, "BURST_SECONDS", 600.0)
    monkeypatch.setattr(step_loop, "BURST_PART", 1.0)
    first = in_flight(scorer, request, launches)
    with scorer.engine._callers:  # somebody is bringing one more, for ever
        second = scorer.submit(request)
        for future in (first, second):
            assert difference(future.result(30).scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32
    assert launches[1] - launches[0] > 0.8 * SECONDS, "but for nearly as long"
