"""Callers and the engine's thread: who waits for whom, and for how long at most."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from engine.tiny import FLOAT32, ITEMS, QUERY, Tiny, difference
from onepass.api import ScoreResult
from onepass.engine.scheduling import launch_gate, step_loop
from onepass.engine.scheduling.launch_gate import LaunchGate
from onepass.errors import RequestError
from onepass.scorer import Scorer


def entered(callers: LaunchGate) -> threading.Event:
    """Set when a caller in a thread of its own has begun."""
    begun = threading.Event()

    def bring() -> None:
        with callers:
            begun.set()

    threading.Thread(target=bring, daemon=True).start()
    return begun


def test_callers_wait_until_the_device_is_fed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_gate, "GIVE_WAY_SECONDS", 60.0)
    callers = LaunchGate()
    with callers.giving_way:
        begun = entered(callers)
        assert not begun.wait(0.2)
    assert begun.wait(30)


def test_callers_do_not_wait_for_a_launch_that_takes_long() -> None:
    callers = LaunchGate()
    with callers.giving_way:
        assert entered(callers).wait(30)


def test_the_thread_that_feeds_the_device_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_gate, "GIVE_WAY_SECONDS", 60.0)
    callers = LaunchGate()
    began = time.perf_counter()
    with callers.giving_way, callers:
        assert callers.coming
    assert time.perf_counter() - began < 30
    assert not callers.coming


@pytest.fixture
def two_in_flight(tiny: Tiny) -> Iterator[tuple[Scorer, list[int]]]:
    """A scorer as on an accelerator, and how many sequences are in each step that it launches."""
    with Scorer(tiny.model, tiny.weights, replace(tiny.scorer().engine.config, steps_in_flight=2)) as scorer:
        parts: list[int] = []
        run = scorer.engine.runner.run

        def noted(shape: Any, packed: Any, *rest: Any) -> Any:
            parts.append(len(packed.reads))
            return run(shape, packed, *rest)

        scorer.engine.runner.run = noted  # type: ignore[method-assign]
        yield scorer, parts


def right(tiny: Tiny, future: "Future[ScoreResult]") -> bool:
    return difference(future.result(60).scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32


def test_a_burst_of_requests_shares_its_first_step(
    tiny: Tiny, two_in_flight: tuple[Scorer, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_loop, "BURST_SECONDS", 30.0)
    monkeypatch.setattr(step_loop, "BURST_PART", 1.0)
    scorer, parts = two_in_flight
    request = tiny.request(QUERY, ITEMS, mode="chunked")  # which computes its own context, beside others
    with scorer.engine._callers:  # somebody is bringing one more
        futures = [scorer.submit(request)]
        time.sleep(0.2)
        futures.append(scorer.submit(request))
        time.sleep(0.2)
        assert parts == []
        monkeypatch.setattr(step_loop, "BURST_SECONDS", 0.0)
    assert all(right(tiny, future) for future in futures)
    assert parts == [2]


def test_a_request_alone_is_not_kept_waiting_for_others(
    tiny: Tiny, two_in_flight: tuple[Scorer, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer, parts = two_in_flight
    request = tiny.request(QUERY, ITEMS, mode="packed")
    assert right(tiny, scorer.submit(request))  # compiled
    monkeypatch.setattr(step_loop, "BURST_SECONDS", 60.0)
    began = time.perf_counter()
    assert right(tiny, scorer.submit(request))
    assert time.perf_counter() - began < 30
    assert parts == [1, 1]


@pytest.mark.parametrize("limit", ["time", "tokens"])
def test_nobody_waits_for_callers_for_ever(
    limit: str, tiny: Tiny, two_in_flight: tuple[Scorer, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, part = (0.2, 1.0) if limit == "time" else (600.0, 1e-6)
    monkeypatch.setattr(step_loop, "BURST_SECONDS", seconds)
    monkeypatch.setattr(step_loop, "BURST_PART", part)
    scorer, _ = two_in_flight
    with scorer.engine._callers:
        assert right(tiny, scorer.submit(tiny.request(QUERY, ITEMS, mode="packed")))


def test_a_request_that_is_refused_is_no_longer_coming(tiny: Tiny) -> None:
    scorer = tiny.scorer()
    for ask in (scorer.submit, lambda request: scorer.score_many([request])):
        with pytest.raises(RequestError):
            ask(tiny.request([], ITEMS))
        assert not scorer.engine._callers.coming


@pytest.mark.parametrize("way", ["submit", "score_many"])
def test_requests_are_coming_while_they_are_made_ready(way: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer, seen = tiny.scorer(), []
    encode = scorer.engine.encoder.encode

    class Watching:
        def encode(self, *given: Any) -> Any:
            seen.append(scorer.engine._callers.coming)
            return encode(*given)

    monkeypatch.setattr(scorer.engine, "encoder", Watching())
    request = tiny.request(QUERY, ITEMS)
    scorer.submit(request).result(60) if way == "submit" else scorer.score_many([request])
    assert seen == [True]


def test_a_result_may_ask_for_more_from_its_callback(tiny: Tiny) -> None:
    scorer, second = tiny.scorer(), Future[ScoreResult]()

    def more(done: "Future[ScoreResult]") -> None:
        scorer.submit(tiny.request(QUERY, ITEMS)).add_done_callback(lambda last: second.set_result(last.result()))

    scorer.submit(tiny.request(QUERY, ITEMS)).add_done_callback(more)
    assert right(tiny, second)


def test_callers_give_way_while_a_step_is_launched(
    tiny: Tiny, two_in_flight: tuple[Scorer, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And while results are handed on: the next launch comes after that."""
    monkeypatch.setattr(launch_gate, "GIVE_WAY_SECONDS", 60.0)
    scorer, _ = two_in_flight
    run, begun = scorer.engine.runner.run, []

    def watched(*given: Any) -> Any:
        begun.append(entered(scorer.engine._callers))
        assert not begun[-1].wait(0.2)
        return run(*given)

    monkeypatch.setattr(scorer.engine.runner, "run", watched)
    future = scorer.submit(tiny.request(QUERY, ITEMS, mode="packed"))
    future.add_done_callback(lambda done: begun.append(entered(scorer.engine._callers)))
    future.add_done_callback(lambda done: begun.append(begun[-1].wait(0.2)))
    assert right(tiny, future)
    scorer.close()
    launching, handing_on, too_early = begun
    assert launching.wait(30)
    assert handing_on.wait(30)
    assert too_early is False
