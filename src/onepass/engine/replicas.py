"""Several engines with the same model behind one front: data parallelism in one process.

A request goes where its context is kept, unless far more waits there, else to the engine with the fewest tokens
waiting. One that is large enough to fill several is divided between them by items. Each engine has its own thread,
programs, contexts and devices.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np

from onepass.api import ContextHandle, ScoreRequest, ScoreResult, Timings, Usage
from onepass.engine.contexts.cache import CachedContext
from onepass.engine.encoding.encode import Encoded
from onepass.engine.encoding.ids import Ids
from onepass.engine.engine import Engine
from onepass.engine.job import JobOutput, OnItems, Tenant, settle
from onepass.engine.programs.builder import ProgramBuilder
from onepass.engine.readout import ReadOut, result_of
from onepass.engine.runner import CompiledProgram
from onepass.engine.scheduling.step_stats import EngineStats
from onepass.errors import ContextNotFound
from onepass.loading.tensor_reader import Progress, silent
from onepass.trace import Trace, joined

LEAST_ITEMS = 8  # a part of a divided request has at least this many, so that its own step is worth it


class Replicas:
    """What an `Engine` is to its callers."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        first = engines[0]
        self.engines = list(engines)
        self.config, self.model, self.encoder, self.planner = first.config, first.model, first.encoder, first.planner
        self.device, self.ladder = first.device, first.ladder
        for number, engine in enumerate(self.engines):
            engine.replica = number
        self.contexts = ReplicaContexts(self.engines)
        self.runner = Runners(self.engines)
        self._waiting = [0] * len(self.engines)  # tokens
        self._lock = threading.Lock()

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """The first mistake among them is raised, before any of them runs."""
        encoded = [self._encoded(request) for request in requests]
        futures: list[Future[JobOutput]] = []
        try:
            futures = [self.submit_encoded(one, one.request.context) for one in encoded]
            answers = [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
        return [self._result(one, answered) for one, answered in zip(encoded, answers, strict=True)]

    def submit(self, request: ScoreRequest, on_items: OnItems | None = None) -> "Future[ScoreResult]":
        encoded = self._encoded(request)
        inner = self.submit_encoded(encoded, request.context, None, on_items)
        out: Future[ScoreResult] = Future()
        out.add_done_callback(lambda done: inner.cancel() if done.cancelled() else None)

        def hand_on(done: "Future[JobOutput]") -> None:
            if not done.cancelled():
                settle(out, done.exception() or self._result(encoded, done.result()))

        inner.add_done_callback(hand_on)
        return out

    def submit_encoded(
        self, encoded: Encoded, handle: str | None = None, share: Tenant | None = None, on_items: OnItems | None = None
    ) -> "Future[JobOutput]":
        if handle is not None:
            return self._give(self.contexts.home(handle), encoded, handle, share, on_items)
        parts = self._parts(encoded)
        if parts == 1:
            return self._give(self._place(encoded.context), encoded, None, share, on_items)
        return _Division(encoded, parts).run(
            lambda at, part, rows: self._give(at, part, None, share, rows), self._least_first(), on_items
        )

    def prefill(self, query: object, ttl_seconds: float, pin: bool) -> ContextHandle:
        ids = self.encoder.encode_context(query)
        self.prefill_encoded(ids).result()
        return self.contexts.open(ids, ttl_seconds, pin)

    def prefill_encoded(self, ids: Ids, share: Tenant | None = None) -> "Future[Ids]":
        at = self._place(ids)
        future = self.engines[at].prefill_encoded(ids, share)
        self._count(at, len(ids), future)
        return future

    @property
    def totals(self) -> EngineStats:
        every = [engine.totals for engine in self.engines]
        return EngineStats(**{f.name: sum(getattr(one, f.name) for one in every) for f in fields(EngineStats)})

    @property
    def oldest_step(self) -> float | None:
        return min((at for engine in self.engines if (at := engine.oldest_step) is not None), default=None)

    @property
    def failure(self) -> Exception | None:
        return next((engine.failure for engine in self.engines if engine.failure is not None), None)

    def abort(self, error: Exception) -> None:
        for engine in self.engines:
            engine.abort(error)

    def close(self) -> None:
        for engine in self.engines:
            engine.close()

    def _encoded(self, request: ScoreRequest) -> Encoded:
        held = None if request.context is None else self.contexts.get(request.context)[1].ids
        return self.encoder.encode(request, held)

    def _result(self, encoded: Encoded, answered: JobOutput) -> ScoreResult:
        return result_of(encoded, answered.read, answered.info, self.model.tokenizer)

    def _place(self, ids: Ids) -> int:
        """Where these ids are kept, unless more waits there than computing them where the least waits; else there."""
        order = self._least_first()
        kept = next((at for at in order if ids and self.engines[at].contexts.find(ids) is not None), None)
        if kept is None:
            return order[0]
        spare = len(ids) + (self.config.max_batch_tokens or 0)
        return kept if self._waiting[kept] <= self._waiting[order[0]] + spare else order[0]

    def _least_first(self) -> list[int]:
        with self._lock:
            return sorted(range(len(self.engines)), key=self._waiting.__getitem__)

    def _parts(self, encoded: Encoded) -> int:
        """In how many a request is divided: no more than it has full steps, so that dividing saves whole steps. Not in
        modes whose rows are not items side by side, and only where all items have as many labels."""
        mode = encoded.request.mode if encoded.request.mode != "auto" else self.config.mode
        if mode in ("serial", "packed") or encoded.branches or len(set(map(len, encoded.labels))) != 1:
            return 1
        step = self.config.max_batch_tokens or 1
        branches = sum(len(text) for texts in encoded.continuations for text in texts)
        steps = (sum(map(len, encoded.items)) + branches) // step
        return max(1, min(len(self.engines), steps, len(encoded.items) // LEAST_ITEMS))

    def _give(
        self, at: int, encoded: Encoded, handle: str | None, share: Tenant | None, on_items: OnItems | None
    ) -> "Future[JobOutput]":
        future = self.engines[at].submit_encoded(encoded, handle, share, on_items)
        self._count(at, encoded.prompt_tokens, future)
        return future

    def _count(self, at: int, tokens: int, future: "Future[Any]") -> None:
        with self._lock:
            self._waiting[at] += tokens

        def done(_: "Future[Any]") -> None:
            with self._lock:
                self._waiting[at] -= tokens

        future.add_done_callback(done)


class _Division:
    """One request in several parts, and its answer put together."""

    def __init__(self, encoded: Encoded, parts: int) -> None:
        edges = np.linspace(0, len(encoded.items), parts + 1).astype(int).tolist()
        self._edges = list(pairwise(edges))
        self._encoded = encoded
        self._lock = threading.Lock()
        self._left = parts

    def run(self, give: Any, places: Sequence[int], on_items: OnItems | None) -> "Future[JobOutput]":
        out: Future[JobOutput] = Future()
        with _all_or_none() as futures:
            for at, (first, last) in zip(places, self._edges, strict=False):
                futures.append(give(at, self._part(first, last), _shifted(on_items, first)))
        out.add_done_callback(lambda done: [future.cancel() for future in futures] if done.cancelled() else None)
        for future in futures:
            future.add_done_callback(lambda done: self._collect(done, futures, out))
        return out

    def _part(self, first: int, last: int) -> Encoded:
        whole = self._encoded
        items = whole.items[first:last]
        tokens = len(whole.context) + sum(map(len, items))
        return replace(
            whole,
            items=items,
            labels=whole.labels[first:last],
            continuations=whole.continuations[first:last],
            prompt_tokens=tokens,
            flat=None,
        )

    def _collect(self, done: "Future[JobOutput]", futures: "list[Future[JobOutput]]", out: "Future[JobOutput]") -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            for future in futures:
                future.cancel()
            settle(out, error)
            return
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last and not any(future.cancelled() for future in futures):
            settle(out, self._joined([future.result() for future in futures]))

    def _joined(self, answers: list[JobOutput]) -> JobOutput:
        best = [answer.read.best for answer in answers if answer.read.best is not None]
        read = ReadOut(
            np.concatenate([answer.read.logits for answer in answers]),
            np.concatenate([answer.read.logsumexp for answer in answers]),
            np.concatenate(best, axis=1) if best else None,
        )
        infos = [answer.info for answer in answers]
        usage = Usage(
            self._encoded.prompt_tokens,
            sum(one.usage.cached_tokens for one in infos),
            sum(one.usage.computed_tokens or 0 for one in infos),
        )
        # Parts run beside each other: the longest counts, but compilations add up.
        timings = Timings(
            **{f.name: max(getattr(one.timings, f.name) for one in infos) for f in fields(Timings)}
            | {"compilations": sum(one.timings.compilations or 0 for one in infos)}
        )
        reason = f"{infos[0].reason}; divided between {len(infos)} replicas"
        trace = self._trace([info.trace for info in infos])
        return JobOutput(read, replace(infos[0], reason=reason, usage=usage, timings=timings, trace=trace))

    def _trace(self, traces: "list[Trace | None]") -> Trace | None:
        """With each part's items numbered as those of the whole request."""
        parts = zip(traces, self._edges, strict=True)
        return joined([trace.shifted(first) for trace, (first, _) in parts if trace is not None])


@contextmanager
def _all_or_none() -> "Iterator[list[Future[Any]]]":
    """Futures that are cancelled when a later one cannot be had."""
    futures: list[Future[Any]] = []
    try:
        yield futures
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _shifted(on_items: OnItems | None, by: int) -> OnItems | None:
    if on_items is None:
        return None
    return lambda first, last, read: on_items(first + by, last + by, read)


class ReplicaContexts:
    """The contexts of all engines, each in the engine that computed it."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._caches = [engine.contexts for engine in engines]
        self.budget = sum(cache.budget for cache in self._caches)

    @property
    def bytes(self) -> int:
        return sum(cache.bytes for cache in self._caches)

    @property
    def peak_bytes(self) -> int:
        return sum(cache.peak_bytes for cache in self._caches)

    @property
    def evictions(self) -> int:
        return sum(cache.evictions for cache in self._caches)

    def __len__(self) -> int:
        return sum(map(len, self._caches))

    def open(self, ids: Ids, ttl_seconds: float, pin: bool) -> ContextHandle:
        kept = next((cache for cache in self._caches if cache.find(ids) is not None), self._caches[0])
        return kept.open(ids, ttl_seconds, pin)

    def home(self, handle_id: str) -> int:
        """The number of the engine that has it."""
        for at, cache in enumerate(self._caches):
            try:
                cache.get(handle_id)
            except ContextNotFound:
                continue
            return at
        raise ContextNotFound(f"context {handle_id!r} is unknown, released, evicted or expired")

    def get(self, handle_id: str) -> tuple[ContextHandle, CachedContext]:
        return self._caches[self.home(handle_id)].get(handle_id)

    def release(self, handle_id: str) -> None:
        self._caches[self.home(handle_id)].release(handle_id)

    def clear(self) -> None:
        for cache in self._caches:
            cache.clear()


class Runners:
    """The counts of all engines' programs."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._runners = [engine.runner for engine in engines]

    @property
    def compilations(self) -> int:
        return sum(runner.compilations for runner in self._runners)

    @property
    def compiling(self) -> int:
        return sum(runner.compiling for runner in self._runners)

    @property
    def builder(self) -> ProgramBuilder:
        return self._runners[0].builder

    def compile_all(self, progress: Progress = silent) -> list[CompiledProgram]:
        with ThreadPoolExecutor(len(self._runners), "onepass-replicas") as pool:
            shown = [progress] + [silent] * (len(self._runners) - 1)
            every = list(pool.map(lambda runner, show: runner.compile_all(show), self._runners, shown))
        return every[0]
