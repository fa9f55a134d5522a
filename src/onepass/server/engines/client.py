"""The service over engine processes: a request encoded on a thread, admitted, sent to an engine, and read out.

    check ─► encode (threads) ─► admit ─► link.ask ─► read out

Encoding is `threaded_encoder`; which process is asked is `engine_set`, and keeping it alive is `process`; handles of
contexts are `opened_contexts`; HTTP is `app`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onepass.api import ContextHandle, ScoreRequest, ScoreResult, Text
from onepass.engine.encoding.chat import ChatContext
from onepass.engine.encoding.encode import Encoded, Encoder
from onepass.engine.readout import RunInfo, result_of
from onepass.errors import DeadlineExceeded, EngineUnavailable, Overloaded, RequestError
from onepass.ipc import Frame
from onepass.server.engines.admission import Admission, Budget
from onepass.server.engines.engine_set import EngineSet
from onepass.server.engines.opened_contexts import OpenedContext, OpenedContexts
from onepass.server.engines.process import EngineProcess
from onepass.server.engines.protocol import ScoreCall, answered, modes_frame, read_out, score_frame
from onepass.server.engines.request_limits import check_modes, check_ttl, num_tokens
from onepass.server.engines.service import Caller, Health, ModesOptions, Part, Served
from onepass.server.engines.threaded_encoder import ThreadedEncoder
from onepass.server.engines.token_cache import TokenCache
from onepass.server.tokenizer_threads import TokenizerThreads

MANY_ITEMS = 2000  # results of more are made on a thread, so that the loop goes on
MANY_TOKENS = 100_000  # and so are calls of more


class EngineClient:
    """Implements `service.Service`."""

    def __init__(
        self,
        links: Sequence[EngineProcess],
        budget: Budget,
        num_keys: int,
        item_cache_bytes: int,
        *,
        served_names: tuple[str, ...] = (),
    ) -> None:
        """`served_names` take the place of the model's own name."""
        self.links = tuple(links)
        self._engines = EngineSet(self.links)
        self.admission = Admission(budget, num_keys)
        self.draining = False
        self._threads = TokenizerThreads()
        self._opened = OpenedContexts()
        self._engine_served: Served | None = None  # as the engine said it
        self._served: Served | None = None  # the same under the names that requests give
        self._served_names = served_names
        self._encoder: ThreadedEncoder | None = None
        self._item_cache_bytes = item_cache_bytes
        self.token_cache: TokenCache | None = None
        self._running_modes = False

    # What stands, for those who ask.

    def health(self) -> Health:
        best = self._engines.best_health()
        if self.draining:
            return replace(best, ready=False, state="draining", reason="the server is shutting down")
        return replace(best, restarts=self._engines.restarts)

    @property
    def served(self) -> Served:
        now = self._engines.served or self._engine_served
        if now is None:
            raise EngineUnavailable(f"no engine is ready yet: {self._engines.reason}", 5.0)
        if now is not self._engine_served:
            self._engine_served = now
            tokenizer = None if now.tokenizer is None else TokenCache(now.tokenizer, self._item_cache_bytes)
            self.token_cache = tokenizer
            encoder = Encoder(tokenizer, now.vocab_size, now.max_position, now.chat, now.class_head)
            self._encoder = ThreadedEncoder(encoder, self._threads, self.admission.check_size)
            names = self._served_names or (now.model,)
            self._served = replace(now, tokenizer=tokenizer, model=names[0], aliases=names[1:])
        assert self._served is not None
        return self._served

    def stats(self) -> dict[str, float]:
        waiting = {"queue_requests": self.admission.requests, "queue_tokens": self.admission.tokens}
        return self._engines.stats() | waiting | {"restarts": self._engines.restarts}

    # Requests.

    def check_room(self, caller: Caller) -> None:
        self._check_serving()
        self.admission.check_room(caller.key)

    async def score(self, request: ScoreRequest, caller: Caller) -> ScoreResult:
        return await self._within(caller, self._score(request, caller, None))

    async def stream(self, request: ScoreRequest, caller: Caller) -> AsyncIterator[Part | ScoreResult]:
        """Parts in the order in which steps finish. With continuations there is one part, the whole."""
        parts: asyncio.Queue[Part | None] = asyncio.Queue()
        task = asyncio.create_task(self._within(caller, self._score(request, caller, parts.put_nowait)))
        task.add_done_callback(lambda _: parts.put_nowait(None))
        try:
            while (part := await parts.get()) is not None:
                yield part
            yield await task
        finally:
            task.cancel()

    async def run_modes(self, request: ScoreRequest, options: ModesOptions, caller: Caller) -> dict[str, Any]:
        return await self._within(caller, self._run_modes(request, options, caller))

    async def open_context(
        self, query: Text | ChatContext, ttl_seconds: float, pin: bool, caller: Caller
    ) -> ContextHandle:
        return await self._within(caller, self._open_context(query, ttl_seconds, pin, caller))

    async def with_tokenizer[T](self, work: Callable[[Served], T], size: int, caller: Caller) -> T:
        served = self.served

        def run(check: Callable[[], None]) -> T:
            return work(replace(served, tokenizer=served.tokenizer and served.tokenizer.checked(check)))

        with self.admission.request(caller.key):
            return await self._threads.run(run, size, caller.deadline)

    async def find_context(self, context_id: str) -> ContextHandle:
        opened = self._opened.find(context_id)
        return await self._context(opened, Frame("find", fields={"id": context_id}))

    async def close_context(self, context_id: str) -> None:
        opened = self._opened.find(context_id)
        self._opened.remove(context_id)
        await opened.link.ask(Frame("close", fields={"id": context_id}))

    # The life of the service.

    async def drain(self, seconds: float) -> int:
        """Take no more requests and wait for those there are; how many were left when the time was up."""
        self.draining = True
        until = time.monotonic() + seconds
        while self.admission.requests and time.monotonic() < until:
            await asyncio.sleep(0.02)
        return self.admission.requests

    async def stop(self) -> None:
        await self._engines.stop()
        self._threads.stop()

    # How it is done.

    async def _score(
        self, request: ScoreRequest, caller: Caller, on_part: Callable[[Part], None] | None
    ) -> ScoreResult:
        began = time.perf_counter()
        self._check_serving()
        with self.admission.request(caller.key):
            opened = None if request.context is None else self._opened.find(request.context)
            encoder = self._encoder
            assert encoder is not None
            encoded = await encoder.encode(request, None if opened is None else opened.ids, caller.deadline)
            encode_ms = 1e3 * (time.perf_counter() - began)
            if on_part is not None and any(encoded.continuations):
                on_part = None
            tokens = num_tokens(encoded)
            with self.admission.work(caller.key, tokens):
                call = ScoreCall(encoded, caller.key, caller.priority, request.context, on_part is not None)
                call_frame = await self._off_loop(tokens > MANY_TOKENS, lambda: score_frame(0, call))
                link = opened.link if opened else self._engines.least_busy()
                frame = await link.ask(call_frame, on_part and self._part_reader(encoded, on_part))
            read, info = answered(frame)
            many = len(encoded.items) > MANY_ITEMS or read.logits.size > MANY_TOKENS
            result = await self._off_loop(many, lambda: result_of(encoded, read, info, encoder.tokenizer))
        total_ms = 1e3 * (time.perf_counter() - began)
        return replace(result, timings=replace(info.timings, encode_ms=encode_ms, total_ms=total_ms))

    async def _run_modes(self, request: ScoreRequest, options: ModesOptions, caller: Caller) -> dict[str, Any]:
        """One at a time, and not among the requests whose rate admission measures."""
        self._check_serving()
        if not self.served.details.get("visualizer"):
            raise RequestError("visualizer_off", "this server does not run modes: start it with --visualizer")
        if self._running_modes:
            raise Overloaded("another request is being run in every mode", 5.0)
        self._running_modes = True
        try:
            with self.admission.request(caller.key):
                assert self._encoder is not None
                encoded = await self._encoder.encode(request, None, caller.deadline)
                check_modes(encoded)
                call = ScoreCall(encoded, caller.key, caller.priority)
                frame = await self._engines.least_busy().ask(modes_frame(call, options.repeats, options.chunk_size))
                return frame.fields
        finally:
            self._running_modes = False

    async def _open_context(
        self, query: Text | ChatContext, ttl_seconds: float, pin: bool, caller: Caller
    ) -> ContextHandle:
        self._check_serving()
        check_ttl(ttl_seconds, pin)
        with self.admission.request(caller.key):
            assert self._encoder is not None
            ids = await self._encoder.encode_context(query, caller.deadline)
            with self.admission.work(caller.key, len(ids)):
                link = self._engines.least_busy()
                fields = {
                    "ttl_seconds": ttl_seconds,
                    "pin": pin,
                    "tenant": caller.key,
                    "priority": caller.priority,
                }
                opened = OpenedContext(link, link.lives, ids)
                context = await self._context(opened, Frame("prefill", 0, fields, {"ids": np.array(ids, np.int32)}))
        self._opened.add(context.id, replace(opened, expires_at=context.expires_at))
        return context

    async def _context(self, opened: OpenedContext, frame: Frame) -> ContextHandle:
        fields = (await opened.link.ask(frame)).fields
        return ContextHandle(fields["id"], fields["tokens"], fields["bytes"], fields["expires_at"], fields["pinned"])

    def _check_serving(self) -> None:
        if self.draining:
            raise EngineUnavailable("the server is shutting down", 5.0, code="draining")
        self.served  # noqa: B018  (raises until an engine has been ready)
        self._engines.check_ready()

    def _part_reader(self, encoded: Encoded, on_part: Callable[[Part], None]) -> Callable[[Frame], None]:
        info = RunInfo("", "", "", None, None)  # type: ignore[arg-type]

        def take(frame: Frame) -> None:
            first, last = frame.fields["first"], frame.fields["last"]
            some = replace(
                encoded,
                request=replace(encoded.request, labels=(), items=()),
                items=encoded.items[first:last],
                labels=encoded.labels[first:last],
                continuations=encoded.continuations[first:last],
            )
            result = result_of(some, read_out(frame), info, None)
            on_part(Part(first, result.scores, result.logprobs))

        return take

    async def _within[T](self, caller: Caller, work: Coroutine[Any, Any, T]) -> T:
        if caller.deadline is None:
            return await work
        left = caller.deadline - time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, left)):
                return await work
        except TimeoutError:
            raise DeadlineExceeded("the request's own time limit has passed") from None

    async def _off_loop[T](self, large: bool, work: Callable[[], T]) -> T:
        """On a thread if it is large: the event loop goes on."""
        return await self._threads.run(lambda _: work(), 0) if large else work()
