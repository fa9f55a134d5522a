"""The service over a real engine process: the library's scores, handles, cancelling, dying, hanging, refusing."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onepass.api import ScoreRequest, ScoreResult
from onepass.errors import ContextNotFound, DeadlineExceeded, EngineUnavailable, Overloaded, RequestError
from onepass.scorer import Scorer
from onepass.server.config import EngineOptions
from onepass.server.engines.admission import Budget
from onepass.server.engines.client import EngineClient
from onepass.server.engines.process import EngineProcess, Timeouts
from onepass.server.engines.service import Caller, Part

NOBODY = Caller()
HASTY = Timeouts(ping=0.1, silence=6.0, first_pause=0.05, farewell=2.0)
TEXT = ScoreRequest(query="the cat sat on", items=[" the mat", " a hat", ""], label_token_ids=[5, 6, 7])


def options(folder: Path, **engine: Any) -> dict[str, Any]:
    return asdict(EngineOptions(str(folder), dtype="float32", engine={"max_batch_tokens": 64, **engine}))


async def started(links: list[EngineProcess]) -> list["asyncio.Task[None]"]:
    tasks = [asyncio.create_task(link.run()) for link in links]
    async with asyncio.timeout(90):
        while not all(link.ready for link in links):
            await asyncio.sleep(0.02)
    return tasks


def serve(
    folder: Path, use: Callable[[EngineClient], Awaitable[None]], *, budget: Budget | None = None, count: int = 1
) -> None:
    """Run `use` on a service over `count` engine processes of this model, then stop them."""

    async def run() -> None:
        links = [EngineProcess(options(folder), HASTY, lambda _: None) for _ in range(count)]
        engines = EngineClient(links, budget or Budget(1 << 20, 100), 0, 1 << 20)
        tasks = await started(links)
        try:
            await use(engines)
        finally:
            pids = [link.process.pid for link in links if link.process]
            await engines.stop()
            await asyncio.gather(*tasks)
            for pid in pids:
                with pytest.raises(ProcessLookupError):
                    os.kill(pid, 0)

    asyncio.run(run())


@pytest.fixture(scope="module")
def folder(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("qwen3")


@pytest.fixture(scope="module")
def scorer(folder: Path) -> Scorer:
    return Scorer.load(str(folder), dtype="float32", max_batch_tokens=64)


def large(items: int = 4000, query: int = 30) -> ScoreRequest:
    random = np.random.default_rng(0)
    ids = random.integers(3, 100, (items, 2)).tolist()
    return ScoreRequest(query=random.integers(3, 100, query).tolist(), items=ids, label_token_ids=[5, 6], mode="extend")


def close(a: Any, b: Any) -> bool:
    return bool(np.allclose(np.array(a), np.array(b), atol=1e-5))


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def test_scores_equal_the_librarys(folder: Path, scorer: Scorer) -> None:
    requests = [
        TEXT,
        replace(TEXT, apply_softmax=True, temperature=2.0),
        replace(TEXT, label_token_ids=[[5], [6, 7], [8]]),
        replace(TEXT, continuations=[" on the mat", " x"], label_token_ids=None),
        replace(TEXT, item_first=True),
        replace(TEXT, items=[]),
        large(100),
    ]

    async def use(engines: EngineClient) -> None:
        for request in requests:
            wanted, got = scorer.score_many([request])[0], await engines.score(request, NOBODY)
            assert len(got.scores) == len(wanted.scores)
            for a, b in zip(got.scores, wanted.scores, strict=True):
                assert close(a, b)
            assert (got.usage.prompt_tokens, got.labels) == (wanted.usage.prompt_tokens, wanted.labels)
            if wanted.continuations:
                assert got.continuations
                for row, other in zip(got.continuations, wanted.continuations, strict=True):
                    assert close([c.logprob for c in row], [c.logprob for c in other])
        many = await asyncio.gather(*(engines.score(large(50, query), NOBODY) for query in range(3, 40)))
        for query, got in zip(range(3, 40), many, strict=True):
            assert close(got.scores, scorer.score_many([large(50, query)])[0].scores)
        with pytest.raises(RequestError, match="must not be empty"):
            await engines.score(replace(TEXT, query=""), NOBODY)
        assert engines.stats()["engine_steps"] >= 0
        assert engines.served.details["device"]["platform"] == "cpu"

    serve(folder, use)


def test_parts_come_as_steps_finish_and_make_the_whole(folder: Path) -> None:
    async def use(engines: EngineClient) -> None:
        parts: dict[int, list[list[float]]] = {}
        result: ScoreResult | None = None
        async for got in engines.stream(large(300), NOBODY):
            if isinstance(got, Part):
                assert result is None
                parts[got.first] = got.scores
            else:
                result = got
        assert result is not None
        assert len(parts) > 5
        assert close([row for first in sorted(parts) for row in parts[first]], result.scores)

    serve(folder, use)


def test_contexts_live_and_end(folder: Path, scorer: Scorer) -> None:
    async def use(engines: EngineClient) -> None:
        context = await engines.open_context(TEXT.query, 60.0, True, NOBODY)  # type: ignore[arg-type]
        assert context.tokens > 0
        assert await engines.find_context(context.id) == context
        with_handle = replace(TEXT, query=None, context=context.id)
        got = await engines.score(with_handle, NOBODY)
        assert close(got.scores, scorer.score_many([TEXT])[0].scores)
        assert got.usage.cached_tokens == context.tokens
        await engines.close_context(context.id)
        for gone in (engines.find_context(context.id), engines.score(with_handle, NOBODY)):
            with pytest.raises(ContextNotFound):
                await gone
        brief = await engines.open_context(TEXT.query, 0.05, False, NOBODY)  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        with pytest.raises(ContextNotFound):
            await engines.score(replace(TEXT, query=None, context=brief.id), NOBODY)

    serve(folder, use)


def test_a_killed_engine_fails_its_requests_at_once_and_comes_back(folder: Path, scorer: Scorer) -> None:
    async def use(engines: EngineClient) -> None:
        link = engines.links[0]
        context = await engines.open_context(TEXT.query, 600.0, True, NOBODY)  # type: ignore[arg-type]
        waiting = [asyncio.create_task(engines.score(large(), NOBODY)) for _ in range(3)]
        await until(lambda: link.calls_out == 3)
        assert link.process is not None
        killed = time.monotonic()
        os.kill(link.process.pid, signal.SIGKILL)
        for task in waiting:
            with pytest.raises(EngineUnavailable, match="signal 9") as caught:
                await task
            assert caught.value.retry_after
        assert time.monotonic() - killed < 10.0
        assert not engines.health().ready
        with pytest.raises(EngineUnavailable):
            await engines.score(TEXT, NOBODY)
        await until(lambda: engines.health().ready)
        assert close((await engines.score(TEXT, NOBODY)).scores, scorer.score_many([TEXT])[0].scores)
        assert engines.health().restarts == 1
        with pytest.raises(ContextNotFound):
            await engines.score(replace(TEXT, query=None, context=context.id), NOBODY)

    serve(folder, use)


def test_a_hung_engine_is_noticed_and_replaced(folder: Path) -> None:
    async def use(engines: EngineClient) -> None:
        link = engines.links[0]
        assert link.process is not None
        os.kill(link.process.pid, signal.SIGSTOP)
        with pytest.raises(EngineUnavailable):
            async with asyncio.timeout(HASTY.silence + 5):
                await engines.score(TEXT, NOBODY)
        await until(lambda: engines.health().ready)
        assert len((await engines.score(TEXT, NOBODY)).scores) == 3

    serve(folder, use)


def start_by(commands: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Engine processes begin with these commands of a shell."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\n{commands}\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def test_an_engine_that_starts_slowly_is_waited_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that has much else to do. Killed for its silence it would start from the beginning, and again."""
    start_by(f"sleep {HASTY.silence + 1}", monkeypatch, tmp_path)

    async def use(engines: EngineClient) -> None:
        assert (engines.links[0].lives, engines.health().restarts) == (1, 0)
        assert len((await engines.score(TEXT, NOBODY)).scores) == 3

    serve(folder, use)


def test_an_engine_that_never_starts_is_replaced(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_by("exec sleep 60", monkeypatch, tmp_path)

    async def run() -> None:
        link = EngineProcess(options(folder), replace(HASTY, first_word=0.5), lambda _: None)
        task = asyncio.create_task(link.run())
        await until(lambda: link.standing.restarts == 1)
        assert "was ended by signal 9" in link.standing.reason
        await link.stop()
        await task

    asyncio.run(run())


def test_deadlines_and_cancelled_callers_cost_the_engine_nothing_more(folder: Path) -> None:
    async def use(engines: EngineClient) -> None:
        with pytest.raises(DeadlineExceeded):
            await engines.score(large(20_000), Caller(deadline=time.monotonic() + 0.5))
        task = asyncio.create_task(engines.score(large(20_000), NOBODY))
        await until(lambda: engines.links[0].calls_out == 1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert (engines.admission.requests, engines.admission.tokens) == (0, 0)
        await engines.score(TEXT, NOBODY)
        await asyncio.sleep(0.5)
        before = engines.stats()["engine_rows"]
        await asyncio.sleep(0.5)
        assert engines.stats()["engine_rows"] == before, "nobody waits, so nothing runs"

    serve(folder, use)


def test_more_than_may_wait_is_refused_and_what_waits_is_answered(folder: Path) -> None:
    async def use(engines: EngineClient) -> None:
        answers = await asyncio.gather(*(engines.score(large(1000), NOBODY) for _ in range(8)), return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, Overloaded)]
        assert 0 < len(refused) < 8
        assert sum(isinstance(answer, ScoreResult) for answer in answers) == 8 - len(refused)

    serve(folder, use, budget=Budget(tokens=7000, requests=100))


def test_draining_finishes_what_has_begun_and_takes_no_more(folder: Path) -> None:
    async def use(engines: EngineClient) -> None:
        begun = [asyncio.create_task(engines.score(large(500), NOBODY)) for _ in range(3)]
        await until(lambda: engines.links[0].calls_out == 3)
        draining = asyncio.create_task(engines.drain(30))
        await asyncio.sleep(0)
        with pytest.raises(EngineUnavailable) as caught:
            await engines.score(TEXT, NOBODY)
        assert caught.value.code == "draining"
        assert engines.health().state == "draining"
        assert await draining == 0
        assert all(len(task.result().scores) == 500 for task in begun)

    serve(folder, use)


def test_two_engines_share_the_work(folder: Path) -> None:
    async def use(engines: EngineClient) -> None:
        await asyncio.gather(*(engines.score(large(300), NOBODY) for _ in range(4)))
        await asyncio.sleep(0.5)
        assert all(link.stats["rows"] > 0 for link in engines.links)
        assert engines.links[0].process is not None
        os.kill(engines.links[0].process.pid, signal.SIGKILL)
        await until(lambda: not engines.links[0].ready)
        assert engines.health().ready, "the other one serves"
        assert len((await engines.score(TEXT, NOBODY)).scores) == 3

    serve(folder, use, count=2)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"model": "no/such/folder"}, "no/such"), ({"engine": {"max_batch_tokens": 3}}, "max_batch_tokens must be")],
)
def test_options_that_cannot_be_served_are_refused_for_good(folder: Path, change: dict[str, Any], words: str) -> None:
    async def run() -> None:
        link = EngineProcess({**options(folder), "offline": True, **change}, HASTY, lambda _: None)
        async with asyncio.timeout(60):
            await link.run()
        assert link.standing.refused is not None
        assert words in link.standing.refused
        assert link.health().state in ("failed", "restarting")

    asyncio.run(run())
