"""The steps that the engine would take for a workload on a device that is not here: the engine's own planner, scheduler
and packing, with a runner that calls nothing.

No weights exist: shapes alone go in. What the steps cost is `roofline` and `memory`; compiling them is `compiler`.
"""

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from onepass.attention.base import StepShape
from onepass.bench.workloads import Workload
from onepass.engine.contexts.cache import ContextCache
from onepass.engine.contexts.pages import PagePool
from onepass.engine.encoding.encode import Encoder
from onepass.engine.encoding.ids import Ids
from onepass.engine.job import Job
from onepass.engine.parts import EngineParts
from onepass.engine.programs.builder import Program, ProgramBuilder
from onepass.engine.runner import Runner
from onepass.engine.scheduling.scheduler import Scheduler
from onepass.engine.scheduling.step_stats import EngineStats, InFlightStep

LABELS = (0, 1)  # which tokens they are costs nothing


@dataclass(frozen=True)
class DryStep:
    """One device's part of a step. `programs` are those that it calls, in order, the same one several times if need
    be."""

    shape: StepShape
    tokens: int  # real ones
    computed_tokens: int  # with the padding that products do not spare
    readouts: int  # real ones
    pages: int  # of contexts, read or written, each counted once
    flops: float  # of the layers, for real tokens and the keys that they see
    programs: tuple[Program, ...]


@dataclass(frozen=True)
class DryRun:
    """Which steps were taken how often, in order of first use; `mode` and `reason` are of the first request."""

    mode: str
    reason: str
    steps: tuple[tuple[DryStep, int], ...]

    @property
    def programs(self) -> tuple[Program, ...]:
        """Each once, in order of first use."""
        return tuple(dict.fromkeys(program for step, _ in self.steps for program in step.programs))


class DryRunner(Runner):
    """Every program answers with zeros; `called` remembers which."""

    def __init__(self, builder: ProgramBuilder) -> None:
        super().__init__(builder)
        self.called: list[Program] = []

    def _call(self, program: Program, *arguments: Any) -> Any:
        self.called.append(program)
        if program.kind == "copy":
            return arguments[0]
        shape = next(shape for shape in self.builder.ladder.shapes if shape.tokens == program.tokens)
        if program.kind == "vocabulary":
            return np.zeros((3, program.size), np.float32)
        logits = np.zeros(shape.pairs, np.float32)
        return (None, logits, self._pool) if program.kind == "step" else logits

    def new_pool(self) -> Any:
        """Shapes: nothing is kept."""
        self._pool = self.builder.pool()
        return self._pool


def rehearse(parts: EngineParts, workload: Workload) -> DryRun:
    """Raises what the engine would: `DoesNotFit`, `TooLong`, and every mistake in a request. A cached workload is run
    twice, and the second time counts."""
    engine = _DryEngine(parts)
    jobs, steps = engine.score(workload)
    if workload.cached:
        jobs, steps = engine.score(workload)
    return DryRun(jobs[0].plan.mode, jobs[0].plan.reason, tuple(steps.items()))


class _DryEngine:
    """As `Engine`, on the caller's thread, a step at a time."""

    def __init__(self, parts: EngineParts) -> None:
        config, page = parts.model_config, parts.attention.page
        assert parts.config.cache_bytes is not None
        pool = PagePool(parts.pages)
        self._encoder = Encoder(None, config.vocab_size, config.max_position)
        self._planner = parts.planner()
        self._contexts = ContextCache(parts.config.cache_bytes, pool, page, parts.cost.page_bytes(page))
        self._runner = DryRunner(parts.builder())
        self._computed_tokens = parts.computed_tokens
        self._scheduler = Scheduler(
            parts.ladder, parts.cost, self._contexts, pool, self._runner, copies_early=False,
            computed_tokens=self._computed_tokens,
        )  # fmt: skip

    def score(self, workload: Workload) -> tuple[list[Job], Counter[DryStep]]:
        jobs = [self._job(request.request) for request in workload.with_labels(LABELS).requests]
        for job in jobs:
            self._scheduler.admit(job)
        steps: Counter[DryStep] = Counter()
        while self._scheduler.waiting:
            self._runner.called.clear()
            launched = self._scheduler.launch()
            if launched is not None:
                steps[self._collected(launched)] += 1
            for job in self._scheduler.finished():
                job.finish("rehearsal")
        for job in jobs:
            job.future.result(timeout=0)
        return jobs, steps

    def _job(self, request: Any) -> Job:
        encoded, now = self._encoder.encode(request), time.perf_counter()
        return Job(self._planner.plan(encoded, self._cached(encoded.context)), encoded.context, now, now, encoded)

    def _cached(self, ids: Ids) -> int:
        nearest = self._contexts.longest_prefix(ids) if ids else None
        return 0 if nearest is None else nearest[1]

    def _collected(self, step: InFlightStep) -> DryStep:
        self._scheduler.stats.totals = EngineStats()  # of this step alone
        self._scheduler.collect(step)
        tokens = step.packed.num_tokens
        return DryStep(
            step.shape, tokens, self._computed_tokens(step.shape, tokens), step.packed.num_readouts,
            len(set(step.pages)), self._scheduler.totals.flops_needed, tuple(self._runner.called),
        )  # fmt: skip
