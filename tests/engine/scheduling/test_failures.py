"""A step that fails is told to those who wait for it; the engine goes on, or leaves nobody waiting."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from engine.tiny import FLOAT32, ITEMS, QUERY, Tiny, difference, tokens
from onepass.attention.base import NOWHERE, StepShape
from onepass.engine.packing import Packed
from onepass.engine.programs.step_arrays import views
from onepass.engine.runner import StepOutput
from onepass.errors import ContextNotFound, OnepassError, RequestError
from onepass.scorer import Scorer

OTHER = tokens(20, 70)


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

        def is_ready(self) -> bool:
            return True

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
