"""The engine: requests in, results out, on one worker thread that owns the device.

    encode ─► plan ─► fill steps ─► pack ─► run ─► read out

A step is bounded by `max_batch_tokens`; anything of any requests shares it. The request with the least left to do goes
first, with ageing, so that a large one neither blocks small ones nor starves.
"""

import atexit
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from onepass.api import ContextHandle, ScoreRequest, ScoreResult
from onepass.engine.contexts.cache import CachedContext, ContextCache
from onepass.engine.contexts.pages import PagePool
from onepass.engine.encoding.encode import Encoded, Encoder
from onepass.engine.encoding.ids import Ids
from onepass.engine.job import Job, JobOutput, OnItems, Tenant, settle
from onepass.engine.parts import EngineParts
from onepass.engine.readout import result_of
from onepass.engine.runner import Runner, Store
from onepass.engine.scheduling.launch_gate import LaunchGate
from onepass.engine.scheduling.scheduler import Scheduler
from onepass.engine.scheduling.step_stats import EngineStats, InFlightStep
from onepass.errors import OnepassError
from onepass.loading.model import Model

if TYPE_CHECKING:
    from onepass.engine.multihost.leader import FollowerSet  # needs what only the server's installation brings

ABANDON_SECONDS = 5.0
# How long others may compute while the engine's thread wants Python's lock: with Python's own 5 ms, callers that encode
# large requests keep it from feeding the device.
LOCK_SECONDS = 0.0001
SHORT_NAP = 0.0002
LONG_NAP = 0.002  # between two looks at whether a step is done already
# While callers bring more, a device with nothing to do is left so for this long at most, unless this part of a step has
# come: small steps cost more a token, and their launches keep the others from coming.
BURST_SECONDS = 0.004
BURST_PART = 0.375
BURST_NAP = 0.0005


class Engine:
    def __init__(
        self, model: Model, parts: EngineParts, store: Store | None = None, followers: "FollowerSet | None" = None
    ) -> None:
        config, page = parts.config, parts.attention.page
        parts.check_memory()
        self.config = config
        self.device = parts.device
        self.model = model
        self.ladder = parts.ladder
        assert config.cache_bytes is not None
        self.encoder = Encoder(
            model.tokenizer, model.config.vocab_size, model.config.max_position, model.chat, model.class_head
        )
        self.pages = PagePool(parts.pages)
        self.contexts = ContextCache(config.cache_bytes, self.pages, page, parts.cost.page_bytes(page))
        self.planner = parts.planner()
        builder = parts.builder()
        self.runner = Runner(builder, store) if followers is None else followers.runner(builder, store)
        # On the CPU there is nothing to copy, and JAX would have its own thread take Python's lock when the step is
        # done: a process that has ended by then is aborted ("terminate called without an active exception").
        copies_early = parts.device.platform != "cpu" and not builder.writes_to_host
        self._scheduler = Scheduler(
            self.ladder, parts.cost, self.contexts, self.pages, self.runner, copies_early, parts.computed_tokens
        )
        self._arrived: deque[Job] = deque()
        self._in_flight: deque[InFlightStep] = deque()
        self._wake = threading.Condition()
        self._callers = LaunchGate()
        self._closing = False
        self._thread: threading.Thread | None = None
        self.replica = 0  # its number among engines of the same model
        self.failure: Exception | None = None  # why the worker thread ended before its time
        if followers is not None:
            followers.lost = self.abort

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """All requests, sharing steps. The first mistake among them is raised, before any of them runs."""
        with self._callers:
            jobs: list[Job] = []
            try:
                for request in requests:
                    jobs.append(self._job(request))
            except BaseException:
                self._let_go_handles(jobs)
                raise
            now = time.perf_counter()
            for job in jobs:
                job.arrived = now  # together: what runs when does not depend on how long encoding them took
            self._admit(jobs)
        try:
            return [self._result(job, job.future.result()) for job in jobs]
        finally:  # after an interrupt nobody waits for the rest, and `close` does not finish it
            for job in jobs:
                job.future.cancel()

    def submit(self, request: ScoreRequest, on_items: OnItems | None = None) -> "Future[ScoreResult]":
        """A future result; a mistake in the request is raised at once. Cancelling it spares the device the rest."""
        with self._callers:
            job = self._job(request, on_items)
            out: Future[ScoreResult] = Future()
            out.add_done_callback(lambda done: job.future.cancel() if done.cancelled() else None)
            job.future.add_done_callback(lambda done: self._hand_on(job, out))
            self._admit([job])
        return out

    def submit_encoded(
        self, encoded: Encoded, handle: str | None = None, share: Tenant | None = None, on_items: OnItems | None = None
    ) -> "Future[JobOutput]":
        """As `submit`, for a request that was encoded elsewhere (the server's front); `handle` names its context."""
        with self._callers:
            start = time.perf_counter()
            held = None if handle is None else self.contexts.hold_handle(handle)
            job = self._planned(encoded, held, start, share, on_items)
            self._admit([job])
        return job.future

    def prefill(self, query: object, ttl_seconds: float, pin: bool) -> ContextHandle:
        """Compute a context now and keep it under a handle."""
        ids = self.encoder.encode_context(query)
        self.prefill_encoded(ids).result()
        return self.contexts.open(ids, ttl_seconds, pin)

    def prefill_encoded(self, ids: Ids, share: Tenant | None = None) -> "Future[Ids]":
        now = time.perf_counter()
        job = Job(self.planner.prefill(ids), ids, now, now, share=share or Tenant())
        self._admit([job])
        return job.future

    @property
    def totals(self) -> EngineStats:
        return self._scheduler.totals

    @property
    def oldest_step(self) -> float | None:
        """When the step that the device is at was given to it (`time.perf_counter`); None when it has nothing to do."""
        launched = next(iter(self._in_flight), None)
        return None if launched is None else launched.at

    def close(self) -> None:
        atexit.unregister(self._end)
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            # After a failure elsewhere the thread may wait for a device that never answers.
            self._thread.join(None if self.failure is None else ABANDON_SECONDS)
        self.runner.close()
        self.contexts.clear()

    def _end(self) -> None:
        """The process ends and nobody has closed the engine. Python would stop its thread wherever it is, and within
        JAX that aborts the process."""
        self.abort(OnepassError("the process ends"))
        self.close()

    def abort(self, error: Exception) -> None:
        """From another thread: nothing can be computed any more. Everybody who waits is told, also of what is out."""
        self.failure = error
        self._scheduler.fail_all(error)
        with self._wake:
            left, self._arrived = list(self._arrived), deque()
        for job in left:
            settle(job.future, error)

    def _job(self, request: ScoreRequest, on_items: OnItems | None = None) -> Job:
        start = time.perf_counter()
        if request.context is None:
            return self._planned(self.encoder.encode(request), None, start, None, on_items)
        held = self.contexts.hold_handle(request.context)
        try:
            encoded = self.encoder.encode(request, held.ids)
        except Exception:
            self.pages.let_go(held.pages)
            raise
        return self._planned(encoded, held, start, None, on_items)

    def _planned(
        self,
        encoded: Encoded,
        held: CachedContext | None,
        start: float,
        share: Tenant | None = None,
        on_items: OnItems | None = None,
    ) -> Job:
        """`held` are the pages of the handle's context, which the job lets go."""
        try:
            plan = self.planner.plan(encoded, self._cached_tokens(encoded.context, held))
            return Job(plan, encoded.context, start, time.perf_counter(), encoded, share or Tenant(), on_items, held)
        except Exception:
            if held is not None:
                self.pages.let_go(held.pages)
            raise

    def _result(self, job: Job, output: JobOutput) -> ScoreResult:
        assert job.encoded is not None
        return result_of(job.encoded, output.read, output.info, self.model.tokenizer)

    def _hand_on(self, job: Job, out: "Future[ScoreResult]") -> None:
        if job.future.cancelled():
            return
        try:
            settle(out, job.future.exception() or self._result(job, job.future.result()))
        except Exception as error:  # the worker must outlive any one request
            settle(out, error)

    def _cached_tokens(self, ids: Ids, held: CachedContext | None) -> int:
        if held is not None and held.ids == ids:
            return len(ids)
        if not ids:
            return 0
        nearest = self.contexts.longest_prefix(ids)
        return 0 if nearest is None else nearest[1]

    def _admit(self, jobs: Sequence[Job]) -> None:
        with self._wake:
            if self._closing or self.failure is not None:
                self._let_go_handles(jobs)
                raise OnepassError(f"the scorer has failed: {self.failure}" if self.failure else "the scorer is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="onepass-engine", daemon=True)
                self._thread.start()
                atexit.register(self._end)
            self._arrived.extend(jobs)
            self._wake.notify()

    def _let_go_handles(self, jobs: Sequence[Job]) -> None:
        """Of jobs that are not admitted."""
        for job in jobs:
            if job.handle is not None:
                self.pages.let_go(job.handle.pages)

    def _serve(self) -> None:
        sys.setswitchinterval(min(sys.getswitchinterval(), LOCK_SECONDS))
        try:
            self._run_steps()
        except Exception as error:  # a defect of ours: nobody may be left waiting
            self.abort(error)
            raise

    def _run_steps(self) -> None:
        in_flight, most = self._in_flight, self.config.steps_in_flight or 1
        # On a CPU a launch may be the whole step.
        feeding: AbstractContextManager[None] = self._callers.giving_way if most > 1 else nullcontext()
        while True:
            with self._wake:
                while not (self._arrived or self._scheduler.waiting or in_flight or self._closing):
                    self._wake.wait()
                if self._closing and not (self._arrived or self._scheduler.waiting or in_flight):
                    return
                while self._arrived:
                    self._scheduler.admit(self._arrived.popleft())
            if most > 1 and (self._nap(in_flight[0]) if len(in_flight) == 1 else not in_flight and self._burst()):
                continue  # with what has come meanwhile
            with feeding:
                launched = self._scheduler.launch()
            if launched is not None:
                in_flight.append(launched)
            if in_flight and (launched is None or len(in_flight) >= most):
                self._scheduler.collect(in_flight[0])
                in_flight.popleft()
            with feeding:
                for job in self._scheduler.finished():
                    job.finish(self.model.name, self.replica)

    def _nap(self, launched: InFlightStep) -> bool:
        """Until a step is nearly done, if that is not yet so. Whoever launched the next one at once would leave out
        those that come meanwhile; whoever waited for the end would launch it when the device is idle already."""
        times = self._scheduler.times
        if times.until_nearly_done(launched) <= SHORT_NAP:
            return False
        while (seconds := times.until_nearly_done(launched)) > 0:
            if launched.ready:
                times.ready_early(launched)
                break
            time.sleep(min(seconds, LONG_NAP))
        return True

    def _burst(self) -> bool:
        """Whether the first step after a pause was put off a little, for those that callers are bringing."""
        since, tokens = self._scheduler.oldest_arrival, self._scheduler.waiting_tokens
        if not self._callers.coming or tokens >= BURST_PART * self._scheduler.max_tokens:
            return False
        left = since + BURST_SECONDS - time.perf_counter()
        if left <= SHORT_NAP:
            return False
        time.sleep(min(left, BURST_NAP))
        return True
