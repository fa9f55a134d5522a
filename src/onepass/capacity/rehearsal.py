"""The steps that the engine would take for a workload on a device that is not here: the engine's own planner and
stepper, with a runner that runs nothing.

No weights exist: shapes alone go in. What the steps cost is `roofline` and `footprint`; compiling them is `compiler`.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onepass.bench.workloads import Workload
from onepass.capacity.share import Share
from onepass.engine.config import Device, EngineConfig
from onepass.engine.contexts import ContextCache, KeptContext
from onepass.engine.encode import Encoder
from onepass.engine.job import Job
from onepass.engine.lowering import Program
from onepass.engine.pack import Batch
from onepass.engine.plan import Planner
from onepass.engine.runner import Computed, Runner
from onepass.engine.steps import Stepper

LABELS = (0, 1)  # which tokens they are costs nothing


@dataclass(frozen=True)
class Rehearsed:
    """What was run how often, in order of first use; `mode` and `reason` are of the first request."""

    mode: str
    reason: str
    steps: tuple[tuple[Program, int], ...]
    context_bytes: int  # kept on one device when all is done
    planner: Planner

    @property
    def programs(self) -> tuple[Program, ...]:
        return tuple(program for program, _ in self.steps)


class OnHost(np.ndarray[Any, Any]):
    """Results that are where the stepper wants them."""

    def copy_to_host_async(self) -> None:
        """Nothing to copy."""


class DryRunner(Runner):
    """Answers with zeros and remembers what it was asked."""

    def __init__(self, share: Share) -> None:
        layout = share.layout
        super().__init__(share.config, layout.abstract_weights(share.dtype), {}, background=False, mesh=layout.mesh)
        self.share = share
        self.ran: Counter[Program] = Counter()

    def compile(self, program: Program) -> None:
        """Nothing will run, so nothing is needed."""

    def run(
        self,
        program: Program,
        batch: Batch,
        contexts: Sequence[tuple[KeptContext | None, int]],
        whole_vocabulary: bool,
        keep: int | None = None,
    ) -> Computed:
        self.ran[program] += 1
        c, s = self.share.one_device, program.shape
        keys = self._zeros(c.num_layers, program.keep, c.num_kv_heads, c.head_dim)
        kept = ((keys, keys, self._zeros(c.hidden_size)),) * s.rows if program.keep else ()
        logits, totals = (
            np.zeros(size).view(OnHost) for size in ((s.rows, s.readouts, s.labels), (s.rows, s.readouts))
        )
        return Computed(logits, totals, kept)  # type: ignore[arg-type]

    def _zeros(self, *shape: int) -> Any:
        """As large as it says, and one number in memory."""
        return np.broadcast_to(np.zeros((), self.share.dtype), shape)


def rehearse(share: Share, engine: EngineConfig, device: Device, workload: Workload) -> Rehearsed:
    """Raises what the engine would: `DoesNotFit`, `TooLong`, and every mistake in a request. A cached workload is run
    twice, and the second time counts."""
    assert engine.cache_bytes is not None
    work = share.work
    planner = Planner(engine, device, work)
    contexts, runner = ContextCache(engine.cache_bytes), DryRunner(share)
    stepper = Stepper(engine, work, contexts, runner, planner)
    jobs = _run(stepper, share, planner, contexts, workload)
    if workload.cached:
        runner.ran.clear()
        jobs = _run(stepper, share, planner, contexts, workload)
    plan = jobs[0].plan
    return Rehearsed(plan.mode, plan.reason, tuple(runner.ran.items()), contexts.bytes, planner)


def _run(stepper: Stepper, share: Share, planner: Planner, contexts: ContextCache, workload: Workload) -> list[Job]:
    encoder = Encoder(None, share.config.vocab_size, share.config.max_position)
    jobs = []
    for asked in workload.with_labels(LABELS).asked:
        encoded = encoder.encode(asked.request)
        cached = len(encoded.context) if contexts.find(encoded.context) else 0
        now = time.perf_counter()
        jobs.append(Job(encoded, planner.plan(encoded, cached), None, now, now))
        stepper.admit(jobs[-1])
    while (launched := stepper.launch()) is not None:
        stepper.collect(launched)
    for job in stepper.finished():
        job.finish("rehearsal")
    for job in jobs:
        job.future.result(timeout=0)
    return jobs
