"""Many requests at once: right answers in order, bounded steps, no starving, and trouble that stays with its cause."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.fake_device import FakeEngine, is_right
from engine.tiny import FLOAT32, ITEMS, QUERY, Tiny, difference, items_of, tokens
from onepass.api import ScoreRequest, ScoreResult
from onepass.attention.base import NOWHERE, StepShape
from onepass.engine.packing import Packed
from onepass.engine.programs.step_arrays import views
from onepass.engine.runner import StepOutput
from onepass.engine.scheduling.step_stats import InFlightStep
from onepass.errors import ContextNotFound, OnepassError, RequestError
from onepass.scorer import Scorer

OTHER = tokens(20, 70)


@pytest.fixture
def small_steps(tiny: Tiny) -> Scorer:
    """Steps of 64 tokens, so that a large request takes many."""
    return tiny.scorer(max_batch_tokens=64)


@pytest.fixture
def failing(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> tuple[Scorer, dict[str, Exception]]:
    """A scorer, and a table: a step that computes contexts ("prefill"), or none ("score"), raises that error."""
    scorer = tiny.scorer()
    scorer.engine.contexts.clear()
    errors: dict[str, Exception] = {}
    run = scorer.engine.runner.run

    def run_or_raise(shape: StepShape, packed: Packed, *rest: Any) -> StepOutput:
        kind = "prefill" if (views(packed.numbers, shape)[5] != NOWHERE).any() else "score"
        if kind in errors:
            raise errors[kind]
        return run(shape, packed, *rest)

    monkeypatch.setattr(scorer.engine.runner, "run", run_or_raise)
    return scorer, errors


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


def test_a_failed_step_fails_its_own_request_and_the_engine_goes_on(
    tiny: Tiny, failing: tuple[Scorer, dict[str, Exception]]
) -> None:
    scorer, errors = failing
    request = tiny.request(QUERY, ITEMS, mode="extend")
    errors["score"] = RuntimeError("a step broke")
    with pytest.raises(RuntimeError, match="a step broke"):
        scorer.submit(request).result(60)
    errors.clear()
    result = scorer.submit(request).result(60)
    assert difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32


def test_a_failed_prefill_fails_all_that_wait_for_it_and_no_others(
    tiny: Tiny, failing: tuple[Scorer, dict[str, Exception]]
) -> None:
    scorer, errors = failing
    handle = scorer.prefill(OTHER)
    errors["prefill"] = RuntimeError("a prefill broke")
    waiting = [scorer.submit(tiny.request(QUERY, ITEMS, mode="extend")) for _ in range(3)]
    for future in waiting:
        with pytest.raises(RuntimeError, match="a prefill broke"):
            future.result(60)
    with pytest.raises(RuntimeError, match="a prefill broke"):
        scorer.prefill(QUERY)
    cached = scorer.score_many([tiny.request(None, ITEMS, mode="extend", context=handle.id)])[0]  # type: ignore[arg-type]
    errors.clear()
    assert difference(cached.scores, tiny.serial(OTHER, ITEMS)) <= FLOAT32
    assert scorer.submit(tiny.request(QUERY, ITEMS, mode="extend")).result(60).usage.cached_tokens == 0


def test_out_of_memory_on_the_device_is_a_request_that_does_not_fit(
    tiny: Tiny, failing: tuple[Scorer, dict[str, Exception]]
) -> None:
    scorer, errors = failing
    errors["score"] = RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes")
    with pytest.raises(RequestError, match="ran out of memory") as caught:
        scorer.submit(tiny.request(QUERY, ITEMS, mode="extend")).result(60)
    assert caught.value.code == "does_not_fit"


def test_a_step_that_fails_on_the_device_is_told_too(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes when the result is waited for, after the launch."""

    class Broken:
        def copy_to_host_async(self) -> None:
            pass

        def __array__(self, *_: object, **__: object) -> None:
            raise RuntimeError("the device broke")

    scorer = tiny.scorer()
    monkeypatch.setattr(scorer.engine.runner, "run", lambda *_: StepOutput([Broken()], None))  # type: ignore[list-item]
    future = scorer.submit(tiny.request(QUERY, ITEMS, mode="packed"))
    with pytest.raises(RuntimeError, match="the device broke"):
        future.result(60)
    monkeypatch.undo()
    result = scorer.submit(tiny.request(QUERY, ITEMS, mode="packed")).result(60)
    assert difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32


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


def test_a_defect_in_the_worker_leaves_nobody_waiting(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = Scorer(tiny.model, tiny.weights, tiny.scorer().engine.config)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(scorer.engine._scheduler, "finished", lambda: 1 / 0)
    futures = [scorer.submit(tiny.request(QUERY, ITEMS, mode="extend")) for _ in range(3)]
    for future in futures:
        with pytest.raises((ZeroDivisionError, OnepassError)):
            future.result(60)
    with pytest.raises(OnepassError, match="has failed"):
        scorer.submit(tiny.request(QUERY, ITEMS))
    assert scorer.engine.loop._thread is not None
    scorer.engine.loop._thread.join(60)  # while its exception is still expected


def test_a_cancelled_request_whose_context_fails_does_not_stop_the_engine(
    tiny: Tiny, failing: tuple[Scorer, dict[str, Exception]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer, errors = failing
    begun, go_on = threading.Event(), threading.Event()
    run = scorer.engine.runner.run

    def held(*arguments: Any) -> StepOutput:
        begun.set()
        assert go_on.wait(60)
        return run(*arguments)

    monkeypatch.setattr(scorer.engine.runner, "run", held)
    errors["prefill"] = RuntimeError("a prefill broke")
    future = scorer.submit(tiny.request(QUERY, ITEMS, mode="extend"))
    assert begun.wait(60)
    assert future.cancel()
    go_on.set()
    with pytest.raises(RuntimeError, match="a prefill broke"):
        scorer.prefill(QUERY)
    errors.clear()
    result = scorer.submit(tiny.request(QUERY, ITEMS, mode="extend")).result(60)
    assert difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32


def test_a_closed_scorer_finishes_what_it_has_and_takes_no_more(tiny: Tiny) -> None:
    scorer = Scorer(tiny.model, tiny.weights, tiny.scorer().engine.config)
    future = scorer.submit(tiny.request(QUERY, ITEMS, mode="extend"))
    scorer.close()
    assert difference(future.result(0).scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32
    with pytest.raises(OnepassError, match="closed"):
        scorer.submit(tiny.request(QUERY, ITEMS))
    scorer.close()


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
        scorer.engine._scheduler.times.shortest.clear()
        yield scorer, launches, sizes


SECONDS = 2.0


def test_a_request_that_comes_during_a_step_is_launched_before_the_step_ends(
    tiny: Tiny, slow: tuple[Scorer, list[float], list[int]]
) -> None:
    """Else the device would wait for its launch."""
    scorer, launches, _ = slow
    request = tiny.request(QUERY, ITEMS, mode="packed")
    for _ in range(2):  # the first time nobody knows how long a step takes
        scorer.engine.contexts.clear()
        launches.clear()
        first = scorer.submit(request)
        while not launches:
            time.sleep(0.001)
        time.sleep(0.3 * SECONDS)
        second = scorer.submit(request)
        results = [future.result(60) for future in (first, second)]
        assert all(difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32 for result in results)
    learnt = list(scorer.engine._scheduler.times.shortest.values())
    assert launches[1] - launches[0] < SECONDS
    assert min(learnt) >= 0.95 * SECONDS, "the second of two says less of how long a step takes"


def test_requests_that_come_during_a_step_share_the_next(
    tiny: Tiny, slow: tuple[Scorer, list[float], list[int]]
) -> None:
    """Launched one by one they would be as many steps, and small steps cost more a token."""
    scorer, launches, sizes = slow
    requests = [tiny.request(tokens(20, 80 + n), ITEMS, mode="packed") for n in range(3)]
    scorer.score_many(requests[:1])
    scorer.engine.contexts.clear()
    launches.clear()
    sizes.clear()
    futures = [scorer.submit(requests[0])]
    while not launches:
        time.sleep(0.001)
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
    launched = InFlightStep(1, shape, [], packed, StepOutput([], None), [], [], now, now, 0)
    monkeypatch.setattr(scheduler.times, "shortest", {} if took is None else {(256, 8 * 100 // 256): took})
    monkeypatch.setattr(scheduler.times, "launches", deque())
    assert left - 0.5 < scheduler.times.until_nearly_done(launched) <= left
    monkeypatch.setattr(scheduler.times, "last_ready", launched.at + 5)
    behind = scheduler.times.until_nearly_done(launched)
    assert left + 4.5 < behind <= left + 5, "behind another, it began when that was done"
    scheduler.times.launches.extend([0.001, 8.0])
    assert scheduler.times.until_nearly_done(launched) <= (took or 0.0) + 5 - 8.0, "slow launches begin earlier"


def test_a_step_that_was_slow_once_is_not_waited_for_again(
    tiny: Tiny, slow: tuple[Scorer, list[float], list[int]]
) -> None:
    """With two steps always in flight none has the device to itself: only its being ready says how long it took."""
    scorer, launches, _ = slow
    request = tiny.request(QUERY, ITEMS, mode="packed")
    times = scorer.engine._scheduler.times
    scorer.score_many([request])
    times.shortest.update(dict.fromkeys(times.shortest, 50.0))
    scorer.engine.contexts.clear()
    launches.clear()
    first = scorer.submit(request)
    while not launches:
        time.sleep(0.001)
    second = scorer.submit(request)
    for future in (first, second):
        assert difference(future.result(30).scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32
    assert min(times.shortest.values()) < 50.0, "next time less is expected"


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


def test_a_step_that_takes_the_pool_with_it_fails_its_requests_and_the_others_begin_again(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by a handle, one whose context takes many steps; the request in the broken step is alone there."""
    config = replace(tiny.scorer(max_batch_tokens=64).engine.config)
    with Scorer(tiny.model, tiny.weights, config) as scorer:
        engine = scorer.engine
        handle = scorer.prefill(OTHER, pin=True)
        run, begun, go_on = engine.runner.run, threading.Event(), threading.Event()

        def breaking(shape: StepShape, packed: Packed, *rest: Any) -> StepOutput:
            if packed.num_tokens == 33:
                begun.set()
                assert go_on.wait(60)
                engine.runner._pool.k.delete()  # type: ignore[union-attr]
                raise RuntimeError("the pool is gone")
            return run(shape, packed, *rest)

        monkeypatch.setattr(engine.runner, "run", breaking)
        broken = scorer.submit(tiny.request(tokens(30, 91), [tokens(3, 92)], mode="serial"))
        assert begun.wait(60)
        long = scorer.submit(tiny.request(tokens(300, 93), ITEMS, mode="extend"))
        by_handle = scorer.submit(tiny.request(None, ITEMS, context=handle.id))  # type: ignore[arg-type]
        go_on.set()
        with pytest.raises(RuntimeError, match="the pool is gone"):
            broken.result(60)
        assert difference(long.result(60).scores, tiny.serial(tokens(300, 93), ITEMS)) <= FLOAT32
        assert difference(by_handle.result(60).scores, tiny.serial(OTHER, ITEMS)) <= FLOAT32
        with pytest.raises(ContextNotFound):
            scorer.score_many([tiny.request(None, ITEMS, context=handle.id)])  # type: ignore[arg-type]
