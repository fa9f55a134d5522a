"""Many requests at once: right answers in order, bounded steps, no starving, and trouble that stays with its cause."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.tiny import FLOAT32, ITEMS, QUERY, Tiny, difference, items_of, tokens
from onepass.api import ScoreRequest, ScoreResult
from onepass.attention.base import RowShape
from onepass.engine.lowering import Program
from onepass.engine.runner import Computed
from onepass.engine.steps import Launched, Stepper
from onepass.engine.work import Work
from onepass.errors import OnepassError, RequestError
from onepass.scorer import Scorer

OTHER = tokens(20, 70)


@pytest.fixture
def small_steps(tiny: Tiny) -> Scorer:
    """Steps of 64 tokens, so that a large request takes many."""
    return tiny.scorer(max_batch_tokens=64)


@pytest.fixture
def failing(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Scorer, dict[str, Exception]]]:
    """A scorer, and a table: a step with that kind of program raises that error."""
    scorer = tiny.scorer()
    scorer.engine.contexts.clear()
    errors: dict[str, Exception] = {}
    run = scorer.engine.runner.run

    def run_or_raise(program: Program, *rest: Any) -> Computed:
        if program.kind in errors:
            raise errors[program.kind]
        return run(program, *rest)

    monkeypatch.setattr(scorer.engine.runner, "run", run_or_raise)
    return scorer, errors


def test_64_concurrent_requests_of_mixed_sizes_score_as_serial(tiny: Tiny) -> None:
    scorer = tiny.scorer(background_compile=True)
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


def test_small_requests_do_not_starve_a_large_one(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new small request comes with every step and goes first, until the large one's age counts for more."""
    engine = tiny.scorer(max_batch_tokens=64, chunk_size=4, mask="dense").engine
    steps = Stepper(engine.config, Work(tiny.model.config, 4), engine.contexts, engine.runner, engine.planner)
    clock = time.perf_counter()
    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    large = engine._job(tiny.request(QUERY, ITEMS * 10, mode="chunked"))
    steps.admit(large)
    begun = ended = 0
    for step in range(1, 1000):
        clock += 1.0
        steps.admit(engine._job(tiny.request(QUERY, ITEMS, mode="packed")))
        launched = steps.launch()
        assert launched is not None
        steps.collect(launched)
        for job in steps.finished():
            job.finish(tiny.model.name)
        begun = begun or (step if large.started is not None else 0)
        if large.done:
            ended = step
            break
    assert 100 < begun < ended
    scores = engine._result(large, large.future.result(0)).scores
    assert difference(scores, np.tile(tiny.serial(QUERY, ITEMS), (10, 1))) <= FLOAT32


def check_many_items(tiny: Tiny, scorer: Scorer, count: int) -> None:
    """Items of one or two tokens, of which only 50 differ, so that every place can be checked."""
    kinds = items_of([1, 2] * 25, 73)
    order = np.random.default_rng(1).integers(0, 50, count)
    result = scorer.score_many([tiny.request(QUERY, [kinds[i] for i in order], mode="extend")])[0]
    assert difference(result.scores, tiny.serial(QUERY, kinds)[order]) <= FLOAT32
    assert result.usage.computed_tokens <= len(QUERY) + sum(len(kinds[i]) for i in order)


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
    cached = scorer.submit(tiny.request(None, ITEMS, mode="extend", context=handle.id))  # type: ignore[arg-type]
    for future in waiting:
        with pytest.raises(RuntimeError, match="a prefill broke"):
            future.result(60)
    with pytest.raises(RuntimeError, match="a prefill broke"):
        scorer.prefill(QUERY)
    assert difference(cached.result(60).scores, tiny.serial(OTHER, ITEMS)) <= FLOAT32
    errors.clear()
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
    monkeypatch.setattr(scorer.engine.runner, "run", lambda *_: Computed(Broken(), None, ()))  # type: ignore[arg-type]
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
    before = small_steps.engine.totals.rows
    large = small_steps.submit(tiny.request(QUERY, items_of([2] * 6_000, 75), mode="extend"))
    while small_steps.engine.totals.rows == before:
        time.sleep(0.001)
    assert large.cancel()
    small_steps.score_many([tiny.request(QUERY, ITEMS, mode="extend")])
    assert small_steps.engine.totals.rows - before < 60, "of 188 rows"
    assert not small_steps.engine._stepper.waiting


def test_a_context_that_nobody_waits_for_any_more_is_not_computed(tiny: Tiny, small_steps: Scorer) -> None:
    """It takes many steps of 64 tokens; the request that wanted it is cancelled after the first."""
    long = tokens(1_000, 76)
    before = small_steps.engine.totals.steps
    future = small_steps.submit(tiny.request(long, ITEMS, mode="extend"))
    while small_steps.engine.totals.steps == before:
        time.sleep(0.001)
    assert future.cancel()
    small_steps.score_many([tiny.request(QUERY, ITEMS, mode="extend")])
    assert not small_steps.engine._stepper.waiting
    assert small_steps.engine.contexts.find(tuple(long)) is None


def test_rows_are_told_as_they_are_read_out(tiny: Tiny, small_steps: Scorer) -> None:
    items = items_of([2] * 200, 77)
    encoded = small_steps.engine.encoder.encode(tiny.request(QUERY, items, mode="extend"))
    told: dict[int, tuple[int, np.ndarray]] = {}
    future = small_steps.engine.submit_encoded(
        encoded, on_rows=lambda first, last, read: told.update({first: (last, read.logits.copy())})
    )
    whole = future.result(60).read.logits
    assert len(told) > 5
    assert sorted(told) == [0, *sorted(last for last, _ in told.values())[:-1]], "every item once"
    for first, (last, logits) in told.items():
        assert np.array_equal(whole[first:last], logits)


def test_a_defect_in_the_worker_leaves_nobody_waiting(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = Scorer(tiny.model, tiny.weights, tiny.scorer().engine.config)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(scorer.engine._stepper, "finished", lambda: 1 / 0)
    futures = [scorer.submit(tiny.request(QUERY, ITEMS, mode="extend")) for _ in range(3)]
    for future in futures:
        with pytest.raises((ZeroDivisionError, OnepassError)):
            future.result(60)
    with pytest.raises(OnepassError, match="has failed"):
        scorer.submit(tiny.request(QUERY, ITEMS))


def test_a_cancelled_request_whose_context_fails_does_not_stop_the_engine(
    tiny: Tiny, failing: tuple[Scorer, dict[str, Exception]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer, errors = failing
    begun, go_on = threading.Event(), threading.Event()
    run = scorer.engine.runner.run

    def held(*arguments: Any) -> Computed:
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

    def __init__(self, told: Any, at: float) -> None:
        self.told, self.at = np.asarray(told), at

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        time.sleep(max(0.0, self.at - time.perf_counter()))
        return self.told


def test_a_request_that_comes_during_a_step_is_launched_before_the_step_ends(tiny: Tiny) -> None:
    """Else the device would wait for its launch."""
    seconds, launches = 0.6, []
    with Scorer(tiny.model, tiny.weights, replace(tiny.scorer().engine.config, steps_in_flight=2)) as scorer:
        runner, request = scorer.engine.runner, tiny.request(QUERY, ITEMS, mode="packed")
        scorer.score_many([request])
        run = runner.run

        def slow_run(program, *rest):  # type: ignore[no-untyped-def]
            computed = run(program, *rest)
            launches.append(time.perf_counter())
            return Computed(*(Slow(told, launches[-1] + seconds) for told in (computed.logits, computed.logsumexp)), ())

        runner.run = slow_run  # type: ignore[method-assign]
        scorer.engine._stepper._took.clear()
        for _ in range(2):  # the first time nobody knows how long a step takes
            scorer.engine.contexts.clear()
            launches.clear()
            first = scorer.submit(request)
            while not launches:
                time.sleep(0.001)
            time.sleep(0.3 * seconds)
            second = scorer.submit(request)
            results = [future.result(60) for future in (first, second)]
            assert all(difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32 for result in results)
        learnt = list(scorer.engine._stepper._took.values())
    assert launches[1] - launches[0] < seconds - 0.05
    assert min(learnt) >= 0.95 * seconds, "the second of two says less of how long a step takes"


def test_requests_that_come_during_a_step_share_the_next(tiny: Tiny) -> None:
    """Launched one by one they would be as many steps, and small steps cost more a token."""
    seconds, launches = 0.6, []
    with Scorer(tiny.model, tiny.weights, replace(tiny.scorer().engine.config, steps_in_flight=2)) as scorer:
        runner, request = scorer.engine.runner, tiny.request(QUERY, ITEMS, mode="packed")
        scorer.score_many([request])
        scorer.score_many([request] * 2)
        run = runner.run

        def slow_run(program, *rest):  # type: ignore[no-untyped-def]
            computed = run(program, *rest)
            launches.append(program.shape.rows)
            at = time.perf_counter() + seconds
            return Computed(*(Slow(told, at) for told in (computed.logits, computed.logsumexp)), ())

        runner.run = slow_run  # type: ignore[method-assign]
        scorer.engine.contexts.clear()
        scorer.engine._stepper._took.clear()
        scorer.score_many([request])
        launches.clear()
        futures = [scorer.submit(request)]
        while not launches:
            time.sleep(0.001)
        for _ in range(2):
            time.sleep(0.05 * seconds)
            futures.append(scorer.submit(request))
        results = [future.result(60) for future in futures]
    assert launches == [1, 2]
    assert all(difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32 for result in results)


@pytest.mark.parametrize(("took", "left"), [(10.0, 7.0), (0.004, 0.001), (0.002, -0.001), (None, -0.003)])
def test_the_next_step_is_looked_for_near_the_end_of_one_and_in_time_to_be_launched(
    took: float | None, left: float, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepper = tiny.scorer().engine._stepper
    program = Program("score", RowShape(1, 0, 16, 16, 16, 1, 4), "cascade")
    monkeypatch.setattr(stepper, "_took", {} if took is None else {program: took})
    launched = Launched(program, [], Computed(None, None, ()), time.perf_counter(), 0)
    assert left - 0.5 < stepper.until_nearly_done(launched) <= left
    monkeypatch.setattr(stepper, "_last_ready", launched.at + 5)
    assert left + 4.5 < stepper.until_nearly_done(launched) <= left + 5, "behind another, it began when that was done"
