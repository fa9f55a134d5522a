"""Threads that tokenise: small requests do not wait for large ones, and nobody's work goes on for nobody."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from onepass.api import ScoreRequest
from onepass.errors import DeadlineExceeded
from onepass.loading.tokenizer import LOOKED_UP_CHARS
from onepass.server.engines.threaded_encoder import FEW_IDS, has_few_ids, has_short_texts
from onepass.server.http.memory import configure_malloc, release_free_memory
from onepass.server.tokenizer_threads import FEW_TEXTS, LARGE_CHARS, Abandoned, TokenizerThreads

SECONDS = 60.0


def test_a_small_request_does_not_wait_for_large_ones() -> None:
    release = threading.Event()

    async def both() -> list[str]:
        threads = TokenizerThreads(small=1, large=1)
        large = [
            asyncio.create_task(threads.run(lambda _: release.wait(SECONDS), LARGE_CHARS + 1, None)) for _ in range(3)
        ]
        await asyncio.sleep(0)
        order = [await threads.run(lambda _: "small", 10, None)]
        assert not any(task.done() for task in large)
        release.set()
        await asyncio.gather(*large)
        threads.stop()
        return [*order, "large"]

    assert asyncio.run(both()) == ["small", "large"]


def test_work_that_nobody_waits_for_stops_at_its_next_check() -> None:
    began, ended = threading.Event(), threading.Event()

    def work(check: Callable[[], None]) -> None:
        began.set()
        try:
            for _ in range(int(SECONDS / 0.01)):
                time.sleep(0.01)
                check()
        except Abandoned:
            ended.set()
            raise

    async def cancel() -> None:
        threads = TokenizerThreads()
        task = asyncio.create_task(threads.run(work, LARGE_CHARS + 1, None))
        await asyncio.to_thread(began.wait, SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(ended.wait, SECONDS)
        threads.stop()

    asyncio.run(cancel())


def test_work_stops_when_its_time_is_over() -> None:
    def work(check: Callable[[], None]) -> None:
        while True:
            check()

    async def run() -> None:
        threads = TokenizerThreads()
        with pytest.raises(DeadlineExceeded):
            await threads.run(work, 10, time.monotonic() + 0.05)
        with pytest.raises(DeadlineExceeded):
            await threads.run(lambda _: pytest.fail("began too late"), 10, time.monotonic() - 1)
        threads.stop()

    asyncio.run(run())


def test_memory_can_be_given_back_wherever_it_runs() -> None:
    configure_malloc()
    release_free_memory()


@pytest.mark.parametrize(
    ("request_", "few"),
    [
        (ScoreRequest(query=[1, 2], items=[[3], []], label_token_ids=[4, 5]), True),
        (ScoreRequest(query=[1, 2], items=[[3], [4]], label_token_ids=[[4], [5]]), True),
        (ScoreRequest(query="a", items=["b"], label_token_ids=[4]), False),
        (ScoreRequest(query=[1], items=[[3]], labels=["a"]), False),
        (ScoreRequest(query=[1], items=[[3], "b"], label_token_ids=[4]), False),
        (ScoreRequest(query=[1] * (FEW_IDS + 1), items=[[3]], label_token_ids=[4]), False),
        (ScoreRequest(query=[1], items=[[]] * (FEW_IDS + 1), label_token_ids=[4]), False),
        (ScoreRequest(query=[1], items=[[3]], label_token_ids=[[4]] * FEW_IDS), False),
        (ScoreRequest(messages=[], items=["a"], label_token_ids=[4]), False),
    ],
)
def test_only_a_few_ids_are_checked_without_a_thread(request_: ScoreRequest, few: bool) -> None:
    assert has_few_ids(request_) is few


@pytest.mark.parametrize(
    ("request_", "short"),
    [
        (ScoreRequest(query="a", items=["b", "c"], labels=["d"]), True),
        (ScoreRequest(query="a", items=[[1, 2]], label_token_ids=[4]), True),
        (ScoreRequest(query="a" * (LOOKED_UP_CHARS + 1), items=["b"], label_token_ids=[4]), False),
        (ScoreRequest(query="a", items=[""] * (FEW_TEXTS + 1), label_token_ids=[4]), False),
        (ScoreRequest(query="a", items=["b"], label_token_ids=[[4]] * FEW_IDS), False),
        (ScoreRequest(query="a", items=["b"], continuations=["c"]), False),
        (ScoreRequest(messages=[], items=["a"], label_token_ids=[4]), False),
    ],
)
def test_only_short_texts_are_looked_up_without_a_thread(request_: ScoreRequest, short: bool) -> None:
    assert has_short_texts(request_) is short
