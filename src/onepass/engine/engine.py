"""The engine: requests in, results out, on one worker thread that owns the device.

    encode ─► plan ─► (prefill) ─► pack ─► run ─► read out

Steps are bounded by `max_batch_tokens`; rows of several requests share a step when their shapes agree; the request
with the least left to do goes first, with ageing, so that a large one neither blocks small ones nor starves.
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

from jax.sharding import Mesh

from onepass.api import ScoreRequest, ScoreResult
from onepass.attention.base import Attention
from onepass.engine.callers import Callers
from onepass.engine.config import Device, EngineConfig
from onepass.engine.contexts import ContextCache, ContextHandle, KeptContext
from onepass.engine.encode import Encoded, Encoder
from onepass.engine.ids import Ids
from onepass.engine.job import Answered, Job, OnRows, PrefillJob, Share, settle
from onepass.engine.plan import Planner
from onepass.engine.readout import result_of
from onepass.engine.runner import Runner
from onepass.engine.steps import Launched, Stepper, Totals
from onepass.engine.work import Work
from onepass.errors import OnepassError
from onepass.loading.model import Model
from onepass.models.layout import Layout
from onepass.models.products import Products
from onepass.models.weights import Weights

if TYPE_CHECKING:
    from onepass.engine.leading import Followers  # needs what only the server's installation brings


ABANDON_SECONDS = 5.0
# How long others may compute while the engine's thread wants Python's lock: with Python's own 5 ms, callers that encode
# large requests keep it from feeding the device.
LOCK_SECONDS = 0.0001
SHORT_NAP = 0.0002
# While callers bring more, a device with nothing to do is left so for this long at most, unless this part of a step has
# come: small steps cost more a token, and their launches keep the others from coming.
BURST_SECONDS = 0.004
BURST_PART = 0.375
BURST_NAP = 0.0005


class Engine:
    """`config` must be decided (`engine.config.for_device`); `weights` lie as `Layout(model.config, mesh)` says."""

    def __init__(
        self,
        model: Model,
        weights: Weights,
        config: EngineConfig,
        device: Device,
        attentions: dict[str, Attention],
        mesh: Mesh | None = None,
        followers: "Followers | None" = None,
        products: Products | None = None,
    ) -> None:
        layout = Layout(model.config, mesh)
        work = Work.of(layout.share, weights)
        assert config.cache_bytes is not None
        self.config = config
        self.model = model
        self.encoder = Encoder(model.tokenizer, model.config.vocab_size, model.config.max_position)
        self.contexts = ContextCache(config.cache_bytes)
        self.planner = Planner(config, device, work)
        tells_host = device.platform in ("gpu", "cuda") and layout.devices == 1
        programs = (model.config, weights, attentions, config.background_compile, mesh, products, tells_host)
        self.runner = Runner(*programs) if followers is None else followers.runner(*programs)
        self._stepper = Stepper(config, work, self.contexts, self.runner, self.planner)
        self._arrived: deque[Job | PrefillJob] = deque()
        self._in_flight: deque[Launched] = deque()
        self._wake = threading.Condition()
        self._callers = Callers()
        self._closing = False
        self._thread: threading.Thread | None = None
        self.failure: Exception | None = None  # why the worker thread ended before its time
        if followers is not None:
            followers.lost = self.abort

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """All requests, sharing steps. The first mistake among them is raised, before any of them runs."""
        with self._callers:
            jobs = [self._job(request) for request in requests]
            self._admit(jobs)
        return [self._result(job, job.future.result()) for job in jobs]

    def submit(self, request: ScoreRequest) -> "Future[ScoreResult]":
        """A future result; a mistake in the request is raised at once. Cancelling it spares the device the rest."""
        with self._callers:
            job = self._job(request)
            out: Future[ScoreResult] = Future()
            out.add_done_callback(lambda done: job.future.cancel() if done.cancelled() else None)
            job.future.add_done_callback(lambda done: self._hand_on(job, out))
            self._admit([job])
        return out

    def submit_encoded(
        self, encoded: Encoded, handle: str | None = None, share: Share | None = None, on_rows: OnRows | None = None
    ) -> "Future[Answered]":
        """As `submit`, for a request that was encoded elsewhere (the server's front); `handle` names its context."""
        with self._callers:
            start = time.perf_counter()
            held = None if handle is None else self.contexts.get(handle)[1]
            job = self._planned(encoded, held, start)
            job.share, job.on_rows = share or Share(), on_rows
            self._admit([job])
        return job.future

    def prefill(self, query: object, ttl_seconds: float, pin: bool) -> ContextHandle:
        """Compute a context now and keep it under a handle."""
        ids = self.encoder.encode_context(query)
        self.prefill_encoded(ids).result()
        return self.contexts.open(ids, ttl_seconds, pin)

    def prefill_encoded(self, ids: Ids, share: Share | None = None) -> "Future[KeptContext]":
        job = PrefillJob(ids, share=share or Share())
        self._admit([job])
        return job.future

    @property
    def totals(self) -> Totals:
        return self._stepper.totals

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
        self._stepper.fail_all(error)
        with self._wake:
            left, self._arrived = list(self._arrived), deque()
        for job in left:
            settle(job.future, error)

    def _job(self, request: ScoreRequest) -> Job:
        start = time.perf_counter()
        held: KeptContext | None = None
        if request.context is not None:
            _, held = self.contexts.get(request.context)
        return self._planned(self.encoder.encode(request, held.ids if held else None), held, start)

    def _planned(self, encoded: Encoded, held: KeptContext | None, start: float) -> Job:
        if held is not None and encoded.context != held.ids:
            held = None  # a delimiter extends the kept context; `nearest` will find it
        plan = self.planner.plan(encoded, self._cached_tokens(encoded.context, held))
        return Job(encoded, plan, held, start, time.perf_counter())

    def _result(self, job: Job, answered: Answered) -> ScoreResult:
        return result_of(job.encoded, answered.read, answered.told, self.model.tokenizer)

    def _hand_on(self, job: Job, out: "Future[ScoreResult]") -> None:
        if job.future.cancelled():
            return
        try:
            settle(out, job.future.exception() or self._result(job, job.future.result()))
        except Exception as error:  # the worker must outlive any one request
            settle(out, error)

    def _cached_tokens(self, ids: Ids, held: KeptContext | None) -> int:
        if held is not None or not ids or self.contexts.find(ids) is not None:
            return len(ids)
        nearest = self.contexts.nearest(ids)
        return 0 if nearest is None else nearest[1]

    def _admit(self, jobs: Sequence[Job | PrefillJob]) -> None:
        with self._wake:
            if self._closing or self.failure is not None:
                raise OnepassError(f"the scorer has failed: {self.failure}" if self.failure else "the scorer is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="onepass-engine", daemon=True)
                self._thread.start()
                atexit.register(self._end)
            self._arrived.extend(jobs)
            self._wake.notify()

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
                while not (self._arrived or self._stepper.waiting or in_flight or self._closing):
                    self._wake.wait()
                if self._closing and not (self._arrived or self._stepper.waiting or in_flight):
                    return
                while self._arrived:
                    self._stepper.admit(self._arrived.popleft())
            if most > 1 and (self._nap(in_flight[0]) if len(in_flight) == 1 else not in_flight and self._burst()):
                continue  # with what has come meanwhile
            with feeding:
                launched = self._stepper.launch()
            if launched is not None:
                in_flight.append(launched)
            if in_flight and (launched is None or len(in_flight) >= most):
                self._stepper.collect(in_flight[0])
                in_flight.popleft()
            with feeding:
                for job in self._stepper.finished():
                    job.finish(self.model.name)

    def _nap(self, launched: Launched) -> bool:
        """Until a step is nearly done, if that is not yet so. Whoever launched the next one at once would leave out
        those that come meanwhile; whoever waited for the end would launch it when the device is idle already."""
        seconds = self._stepper.until_nearly_done(launched)
        if seconds <= SHORT_NAP:
            return False
        time.sleep(seconds)
        return True

    def _burst(self) -> bool:
        """Whether the first step after a pause was put off a little, for those that callers are bringing."""
        since, tokens = self._stepper.oldest_arrival, self._stepper.waiting_tokens
        if not self._callers.coming or tokens >= BURST_PART * self._stepper.most_tokens:
            return False
        left = since + BURST_SECONDS - time.perf_counter()
        if left <= SHORT_NAP:
            return False
        time.sleep(min(left, BURST_NAP))
        return True
