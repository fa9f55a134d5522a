"""Several engines with the same model behind one front: data parallelism in one process.

A request goes where its context is kept, unless far more waits there, else to the engine with the fewest tokens
waiting. One that is large enough to fill several is divided between them by items (`division`). Each engine has its own
thread, programs, contexts and devices; what callers see of these together is `replica_views`.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import fields
from typing import Any

from onepass.api import ContextHandle, ScoreRequest, ScoreResult
from onepass.engine.division import Division
from onepass.engine.encoding.encode import Encoded
from onepass.engine.encoding.ids import Ids
from onepass.engine.engine import Engine
from onepass.engine.job import JobOutput, OnItems, Tenant, settle
from onepass.engine.readout import result_of
from onepass.engine.replica_views import ReplicaContexts, ReplicaRunners
from onepass.engine.scheduling.step_stats import EngineStats

MIN_PART_ITEMS = 8  # a part of a divided request has at least this many, so that its own step is worth it


class Replicas:
    """What an `Engine` is to its callers."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        first = engines[0]
        self.engines = list(engines)
        self.config, self.model, self.encoder, self.planner = first.config, first.model, first.encoder, first.planner
        self.device, self.ladder = first.device, first.ladder
        for number, engine in enumerate(self.engines):
            engine.loop.replica = number
        self.contexts = ReplicaContexts(self.engines)
        self.runner = ReplicaRunners(self.engines)
        self._waiting = [0] * len(self.engines)  # tokens
        self._lock = threading.Lock()

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """The first mistake among them is raised, before any of them runs."""
        encoded = [self._encoded(request) for request in requests]
        futures: list[Future[JobOutput]] = []
        try:
            futures = [self.submit_encoded(each, each.request.context) for each in encoded]
            answers = [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
        return [self._result(each, answer) for each, answer in zip(encoded, answers, strict=True)]

    def submit(self, request: ScoreRequest, on_items: OnItems | None = None) -> "Future[ScoreResult]":
        encoded = self._encoded(request)
        inner = [self.submit_encoded(encoded, request.context, None, on_items)]
        out: Future[ScoreResult] = Future()
        out.add_done_callback(lambda done: [future.cancel() for future in inner] if done.cancelled() else None)

        def hand_on(done: "Future[JobOutput]") -> None:
            inner.clear()  # no cycle is left (`Engine.submit`)
            if not done.cancelled():
                settle(out, done.exception() or self._result(encoded, done.result()))

        inner[0].add_done_callback(hand_on)
        return out

    def submit_encoded(
        self, encoded: Encoded, handle: str | None = None, share: Tenant | None = None, on_items: OnItems | None = None
    ) -> "Future[JobOutput]":
        if handle is not None:
            return self._give(self.contexts.home(handle), encoded, handle, share, on_items)
        parts = self._parts(encoded)
        if parts == 1:
            return self._give(self._place(encoded.context), encoded, None, share, on_items)
        return Division(encoded, parts).run(
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
        totals = [engine.totals for engine in self.engines]
        return EngineStats(**{f.name: sum(getattr(total, f.name) for total in totals) for f in fields(EngineStats)})

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
        return max(1, min(len(self.engines), steps, len(encoded.items) // MIN_PART_ITEMS))

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
