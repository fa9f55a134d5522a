"""The `Service` of the application's tests: the real `Scorer` in this process, with handles to hold, fail or watch it.

The one that serves (`onepass.server.engines.client`) runs engines in processes of their own and has tests of its own.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from onepass.api import ContextHandle, ScoreRequest, ScoreResult, Text
from onepass.engine.encoding.chat import ChatContext
from onepass.errors import DeadlineExceeded, Overloaded, RequestError
from onepass.loading.rerankers.templates import Ranker, ranker_to_dict
from onepass.scorer import Scorer
from onepass.server.engines.service import Caller, Health, ModesOptions, Part, Served
from onepass.server.engines.token_cache import TokenCache

READY = Health(True, "ready", "serving", {}, 0)
PART_ITEMS = 2


class InProcess:
    """`hold` keeps requests waiting, `failure` is raised instead of an answer; the late ones after a first part.
    With `check_only` a request is encoded, which finds every mistake in it, and then refused as if there were no room:
    what runs on the device has other tests, and every new shape would be compiled."""

    def __init__(self, scorer: Scorer, ranker: Ranker | None = None) -> None:
        self.scorer = scorer
        tokenizer = scorer.model.tokenizer
        self.token_cache = TokenCache(tokenizer, 1 << 20) if tokenizer else None
        config = scorer.model.config
        self._served = Served(
            scorer.model.name,
            tokenizer,
            config.vocab_size,
            config.max_position,
            ranker or scorer.model.ranker,
            1_700_000_000,
            {"device": "cpu", "ranker": ranker_to_dict(ranker or scorer.model.ranker)},
            chat=scorer.model.chat,
            class_head=scorer.model.class_head,
        )
        self.told_health = READY
        self.aliases: tuple[str, ...] = ()
        self.unavailable: Exception | None = None
        self.failure: Exception | None = None
        self.late: Exception | None = None
        self.hold = False
        self.hold_late = False
        self.check_only = False
        self.running = 0
        self.cancelled = 0
        self.callers: list[Caller] = []

    def health(self) -> Health:
        return self.told_health

    @property
    def served(self) -> Served:
        if self.unavailable is not None:
            raise self.unavailable
        return replace(self._served, aliases=self.aliases)

    def check_room(self, caller: Caller) -> None:
        """There is always room; what `score` is told to raise, it raises itself."""

    async def score(self, request: ScoreRequest, caller: Caller) -> ScoreResult:
        self.callers.append(caller)
        self.running += 1
        try:
            if self.failure is not None:
                raise self.failure
            if self.check_only:
                held = request.context and self.scorer.engine.contexts.get(request.context)[1].ids
                self.scorer.engine.encoder.encode(request, held)
                raise Overloaded("only checked", 1.0)
            while self.hold:
                await asyncio.sleep(0.005)
            if caller.deadline is not None and caller.deadline < time.monotonic():
                raise DeadlineExceeded("too late")
            future = await asyncio.to_thread(self.scorer.submit, request)
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def stream(self, request: ScoreRequest, caller: Caller) -> AsyncIterator[Part | ScoreResult]:
        result = await self.score(request, caller)
        for first in range(0, len(result.scores), PART_ITEMS):
            rows = slice(first, first + PART_ITEMS)
            yield Part(first, result.scores[rows], result.logprobs[rows] if result.logprobs else None)
            if self.late is not None:
                raise self.late
            while self.hold_late:
                await asyncio.sleep(0.005)
        yield result

    async def run_modes(self, request: ScoreRequest, options: ModesOptions, caller: Caller) -> dict[str, Any]:
        """As a server without the visualizer, after the mistakes in a request."""
        if self.failure is not None:
            raise self.failure
        self.scorer.engine.encoder.encode(request)
        if self.check_only:
            raise Overloaded("only checked", 1.0)
        raise RequestError("visualizer_off", "this server does not run modes: start it with --visualizer")

    async def with_tokenizer[T](self, work: Callable[[Served], T], size: int, caller: Caller) -> T:
        return await asyncio.to_thread(work, self.served)

    async def open_context(
        self, query: Text | ChatContext, ttl_seconds: float, pin: bool, caller: Caller
    ) -> ContextHandle:
        if self.check_only:
            self.scorer.engine.encoder.encode_context(query)
            raise Overloaded("only checked", 1.0)
        handle = await asyncio.to_thread(self.scorer.engine.prefill, query, ttl_seconds, pin)
        return ContextHandle(handle.id, handle.tokens, handle.bytes, handle.expires_at, handle.pinned)

    async def find_context(self, context_id: str) -> ContextHandle:
        handle, _ = self.scorer.engine.contexts.get(context_id)
        return ContextHandle(handle.id, handle.tokens, handle.bytes, handle.expires_at, handle.pinned)

    async def close_context(self, context_id: str) -> None:
        await self.find_context(context_id)
        self.scorer.release(context_id)

    def stats(self) -> dict[str, float]:
        return {"engine_steps": 7.0, "cache_bytes": float(self.scorer.engine.contexts.bytes), "restarts": 0.0}

    def reset(self) -> None:
        fresh: dict[str, Any] = {"unavailable": None, "failure": None, "late": None, "hold": False, "cancelled": 0}
        fresh |= {"check_only": False, "hold_late": False, "aliases": ()}
        for name, value in fresh.items():
            setattr(self, name, value)
        self.told_health = READY
        self.callers.clear()
