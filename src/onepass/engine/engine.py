"""The engine: requests in, results out. Callers' threads encode and plan; one thread owns the device.

    encode ─► plan ─► fill steps ─► pack ─► run ─► read out

That thread is `scheduling.step_loop`. A step is bounded by `max_batch_tokens`; anything of any requests shares it. The
request with the least left to do goes first, with ageing, so that a large one neither blocks small ones nor starves.
"""

import atexit
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from onepass.api import ContextHandle, ScoreRequest, ScoreResult
from onepass.engine.contexts.cache import CachedContext, ContextCache
from onepass.engine.contexts.pages import PagePool
from onepass.engine.encoding.encode import Encoded, Encoder
from onepass.engine.encoding.ids import Ids
from onepass.engine.job import Job, JobOutput, OnItems, Tenant, settle
from onepass.engine.parts import EngineParts
from onepass.engine.programs.compiled import Store
from onepass.engine.readout import result_of
from onepass.engine.runner import Runner
from onepass.engine.scheduling.launch_gate import LaunchGate
from onepass.engine.scheduling.scheduler import Scheduler
from onepass.engine.scheduling.step_loop import StepLoop
from onepass.engine.scheduling.step_stats import EngineStats
from onepass.errors import OnepassError
from onepass.loading.model import Model

if TYPE_CHECKING:
    from onepass.engine.multihost.leader import FollowerSet  # needs what only the server's installation brings


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
        self._callers = LaunchGate()
        self.loop = StepLoop(self._scheduler, self._callers, config.steps_in_flight or 1, model.name)
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
            out: Future[ScoreResult] = Future()
            # Futures keep what they call. When it is over neither may lead to the other: only the collector frees a
            # cycle, and while it looks for them all threads stand still.
            jobs = [self._job(request, on_items)]
            out.add_done_callback(lambda done: [job.future.cancel() for job in jobs] if done.cancelled() else None)
            jobs[0].future.add_done_callback(lambda done: self._hand_on(jobs.pop(), out))
            self._admit(list(jobs))
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
        return self.loop.oldest_step

    @property
    def failure(self) -> Exception | None:
        """Why the engine's thread ended before its time."""
        return self.loop.failure

    def close(self) -> None:
        atexit.unregister(self._end)
        self.loop.close()
        self.runner.close()
        self.contexts.clear()

    def abort(self, error: Exception) -> None:
        """From another thread: nothing can be computed any more. Every waiting request fails, also those in flight."""
        self.loop.abort(error)

    def _end(self) -> None:
        """The process ends and nobody has closed the engine. Python would stop its thread wherever it is, and within
        JAX that aborts the process."""
        self.abort(OnepassError("the process ends"))
        self.close()

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
        try:
            self.loop.add(jobs, self._end)
        except OnepassError:
            self._let_go_handles(jobs)
            raise

    def _let_go_handles(self, jobs: Sequence[Job]) -> None:
        """Of jobs that are not admitted."""
        for job in jobs:
            if job.handle is not None:
                self.pages.let_go(job.handle.pages)
