"""The service over engine processes: a request encoded on a thread, admitted, sent to an engine, and read out.

    check ─► encode (threads) ─► admit ─► link.ask ─► read out

Handles of contexts are tied to the process that holds them. Keeping processes alive is `process`; HTTP is `app`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onepass.api import ContextHandle, ScoreRequest, ScoreResult, Text
from onepass.engine.encoding.branches import BranchedRequest
from onepass.engine.encoding.chat import ChatContext
from onepass.engine.encoding.encode import Encoded, Encoder
from onepass.engine.encoding.ids import Ids
from onepass.engine.readout import RunInfo, result_of
from onepass.errors import ContextNotFound, DeadlineExceeded, EngineUnavailable, Overloaded, RequestError, shown
from onepass.ipc import Frame
from onepass.loading.tokenizer import LOOKED_UP_CHARS, TextTokenizer, UnknownText
from onepass.server.engines.admission import Admission, Budget
from onepass.server.engines.process import EngineProcess
from onepass.server.engines.protocol import ScoreCall, answered, modes_frame, read_out, score_frame
from onepass.server.engines.service import Caller, Health, ModesOptions, Part, Served
from onepass.server.engines.token_cache import TokenCache
from onepass.server.tokenizer_threads import FEW_TEXTS, TokenizerThreads, request_size, text_size

MANY_ITEMS = 2000  # results of more are made on a thread, so that the loop goes on
MANY_TOKENS = 100_000  # and so are calls of more
FEW_IDS = 8192  # a request of token ids up to here is checked in less time than a thread takes to be woken
MAX_MODES_ITEMS, MAX_SERIAL_TOKENS = 256, 65_536  # of a request that is run in every mode


@dataclass(frozen=True)
class _Opened:
    """A context handle: the process that holds it, and the ids it stands for."""

    link: EngineProcess
    life: int
    ids: Ids
    expires_at: float = float("inf")  # known once the engine has answered


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
        self.admission = Admission(budget, num_keys)
        self.draining = False
        self._threads = TokenizerThreads()
        self._opened: dict[str, _Opened] = {}
        self._engine_served: Served | None = None  # as the engine said it
        self._served: Served | None = None  # the same under the names that requests give
        self._served_names = served_names
        self._encoder: Encoder | None = None
        self._item_cache_bytes = item_cache_bytes
        self.token_cache: TokenCache | None = None
        self._running_modes = False

    # What stands, for those who ask.

    def health(self) -> Health:
        best = min((link.health() for link in self.links), key=lambda health: not health.ready)
        if self.draining:
            return replace(best, ready=False, state="draining", reason="the server is shutting down")
        return replace(best, restarts=sum(link.standing.restarts for link in self.links))

    @property
    def served(self) -> Served:
        now = next((link.served for link in self.links if link.served is not None), self._engine_served)
        if now is None:
            raise EngineUnavailable(f"no engine is ready yet: {self.links[0].standing.reason}", 5.0)
        if now is not self._engine_served:
            self._engine_served = now
            tokenizer = None if now.tokenizer is None else TokenCache(now.tokenizer, self._item_cache_bytes)
            self.token_cache = tokenizer
            self._encoder = Encoder(tokenizer, now.vocab_size, now.max_position, now.chat, now.class_head)
            names = self._served_names or (now.model,)
            self._served = replace(now, tokenizer=tokenizer, model=names[0], aliases=names[1:])
        assert self._served is not None
        return self._served

    def stats(self) -> dict[str, float]:
        names = {
            "engine_steps": "steps",
            "engine_rows": "rows",
            "engine_compilations": "compilations",
            "engine_compiling": "compiling",
            "engine_device_seconds": "device_seconds",
            "engine_padding_flops_done": "flops_done",
            "engine_padding_flops_needed": "flops_needed",
            "cache_bytes": "cache_bytes",
            "cache_budget_bytes": "cache_budget_bytes",
            "cache_peak_bytes": "cache_peak_bytes",
            "cache_contexts": "cache_contexts",
            "cache_evictions": "cache_evictions",
            "cache_hit_tokens": "hit_tokens",
        }
        out = {metric: sum(link.stats.get(name, 0) for link in self.links) for metric, name in names.items()}
        waiting = {"queue_requests": self.admission.requests, "queue_tokens": self.admission.tokens}
        return out | waiting | {"restarts": sum(link.standing.restarts for link in self.links)}

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
        opened = self._find(context_id)
        return await self._context(opened, Frame("find", fields={"id": context_id}))

    async def close_context(self, context_id: str) -> None:
        opened = self._find(context_id)
        del self._opened[context_id]
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
        await asyncio.gather(*(link.stop() for link in self.links))
        self._threads.stop()

    # How it is done.

    async def _score(
        self, request: ScoreRequest, caller: Caller, on_part: Callable[[Part], None] | None
    ) -> ScoreResult:
        began = time.perf_counter()
        self._check_serving()
        with self.admission.request(caller.key):
            opened = None if request.context is None else self._find(request.context)
            encoder = self._encoder
            assert encoder is not None
            encoded = await self._encode(encoder, request, None if opened is None else opened.ids, caller)
            encode_ms = 1e3 * (time.perf_counter() - began)
            if on_part is not None and any(encoded.continuations):
                on_part = None
            tokens = _tokens(encoded)
            with self.admission.work(caller.key, tokens):
                call = ScoreCall(encoded, caller.key, caller.priority, request.context, on_part is not None)
                call_frame = await self._off_loop(tokens > MANY_TOKENS, lambda: score_frame(0, call))
                link = opened.link if opened else self._least_busy()
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
                encoded = await self._encode(self._encoder, request, None, caller)
                check_modes(encoded)
                call = ScoreCall(encoded, caller.key, caller.priority)
                frame = await self._least_busy().ask(modes_frame(call, options.repeats, options.chunk_size))
                return frame.fields
        finally:
            self._running_modes = False

    async def _open_context(
        self, query: Text | ChatContext, ttl_seconds: float, pin: bool, caller: Caller
    ) -> ContextHandle:
        self._check_serving()
        _check_ttl(ttl_seconds, pin)
        with self.admission.request(caller.key):
            assert self._encoder is not None
            encoder, size = self._encoder, text_size(query.messages if isinstance(query, ChatContext) else query)
            ids = await self._threads.run(
                lambda check: _checked(encoder, check).encode_context(query), size, caller.deadline
            )
            with self.admission.work(caller.key, len(ids)):
                link = self._least_busy()
                fields = {
                    "ttl_seconds": ttl_seconds,
                    "pin": pin,
                    "tenant": caller.key,
                    "priority": caller.priority,
                }
                opened = _Opened(link, link.lives, ids)
                context = await self._context(opened, Frame("prefill", 0, fields, {"ids": np.array(ids, np.int32)}))
        self._forget_lost()
        self._opened[context.id] = replace(opened, expires_at=context.expires_at)
        return context

    async def _context(self, opened: _Opened, frame: Frame) -> ContextHandle:
        fields = (await opened.link.ask(frame)).fields
        return ContextHandle(fields["id"], fields["tokens"], fields["bytes"], fields["expires_at"], fields["pinned"])

    def _find(self, context_id: str) -> _Opened:
        opened = self._opened.get(context_id)
        if opened is None or opened.life != opened.link.lives:
            self._opened.pop(context_id, None)
            raise ContextNotFound(f"context {context_id!r} is unknown, released, evicted or expired")
        return opened

    def _forget_lost(self) -> None:
        """Handles that have expired, and those of processes that are gone."""
        now = time.time()
        self._opened = {
            name: opened
            for name, opened in self._opened.items()
            if opened.life == opened.link.lives and opened.expires_at > now
        }

    def _check_serving(self) -> None:
        if self.draining:
            raise EngineUnavailable("the server is shutting down", 5.0, code="draining")
        self.served  # noqa: B018  (raises until an engine has been ready)
        if not any(link.ready for link in self.links):
            raise EngineUnavailable(f"no engine is ready: {self.links[0].standing.reason}", 5.0)

    def _least_busy(self) -> EngineProcess:
        ready = [link for link in self.links if link.ready]
        if not ready:
            raise EngineUnavailable(f"no engine is ready: {self.links[0].standing.reason}", 5.0)
        return min(ready, key=lambda link: link.calls_out)

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

    async def _encode(self, encoder: Encoder, request: ScoreRequest, context: Ids | None, caller: Caller) -> Encoded:
        def encode(check: Callable[[], None], tokenizer: TextTokenizer | None = encoder.tokenizer) -> Encoded:
            own = replace(encoder, tokenizer=tokenizer and tokenizer.checked(check))
            encoded = own.encode(request, context)
            self.admission.check_size(_tokens(encoded), sum(map(len, encoded.labels)))
            return encoded

        if has_few_ids(request):
            return encode(_unchecked)
        if encoder.tokenizer is not None and has_short_texts(request):
            with suppress(UnknownText):
                return encode(_unchecked, encoder.tokenizer.quick())
        return await self._threads.run(encode, request_size(request), caller.deadline)

    async def _off_loop[T](self, large: bool, work: Callable[[], T]) -> T:
        """On a thread if it is large: the event loop goes on."""
        return await self._threads.run(lambda _: work(), 0) if large else work()


def has_few_ids(request: ScoreRequest) -> bool:
    """Whether nothing of it has to be tokenised, and little has to be looked at."""
    texts = (request.messages, request.labels, request.continuations)
    if any(text is not None for text in texts) or isinstance(request, BranchedRequest):
        return False
    return sum(map(_num_ids, (request.query, request.items, request.label_token_ids))) <= FEW_IDS


def has_short_texts(request: ScoreRequest) -> bool:
    """Whether looking its texts up, word by word, takes less time than a thread takes to be woken."""
    if request.messages is not None or request.continuations is not None or isinstance(request, BranchedRequest):
        return False
    lists = [texts for texts in (request.items, request.labels) if isinstance(texts, list | tuple)]
    return (
        sum(map(len, lists)) <= FEW_TEXTS
        and _num_ids(request.label_token_ids) <= FEW_IDS
        and request_size(request) <= LOOKED_UP_CHARS
    )


def _num_ids(value: Any) -> int:
    """Ids in a list or in lists of them, where each list counts for one more; text counts for too many."""
    if value is None:
        return 0
    if not isinstance(value, list | tuple):
        return FEW_IDS + 1
    if not value or isinstance(value[0], int) or len(value) > FEW_IDS:
        return len(value)
    return sum(len(entry) + 1 if isinstance(entry, list | tuple) else FEW_IDS + 1 for entry in value)


def _unchecked() -> None:
    """There is nothing to interrupt."""


def _checked(encoder: Encoder, check: Callable[[], None]) -> Encoder:
    return replace(encoder, tokenizer=encoder.tokenizer and encoder.tokenizer.checked(check))


def _tokens(encoded: Encoded) -> int:
    """What the engine may have to compute: the context, the items, and every item's continuations."""
    branches = sum(len(text) for texts in encoded.continuations for text in texts)
    branches += len(encoded.items) * sum(map(len, encoded.branches))
    return len(encoded.context) + sum(map(len, encoded.items)) + branches


def check_modes(encoded: Encoded) -> None:
    """Raises RequestError for what mode serial, which computes the context for every item, is too slow for."""
    count = len(encoded.items)
    if count == 0:
        raise RequestError("missing_items", "give at least one item", "items")
    serial = _tokens(encoded) + (count - 1) * len(encoded.context)
    if count > MAX_MODES_ITEMS or serial > MAX_SERIAL_TOKENS:
        raise RequestError(
            "modes_too_large",
            f"every mode is run for at most {MAX_MODES_ITEMS} items and {MAX_SERIAL_TOKENS:,} tokens in mode serial; "
            f"got {count:,} items and {serial:,} tokens",
            "items",
        )


def _check_ttl(ttl_seconds: Any, pin: Any) -> None:
    number = isinstance(ttl_seconds, int | float) and not isinstance(ttl_seconds, bool)
    if not number or not 0 < ttl_seconds <= 1e9:
        raise RequestError(
            "invalid_ttl", f"ttl_seconds must be a number above 0; got {shown(ttl_seconds)}", "ttl_seconds"
        )
    if not isinstance(pin, bool):
        raise RequestError("invalid_pin", f"pin must be true or false; got {shown(pin)}", "pin")
