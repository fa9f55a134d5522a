"""A step on the device, and what steps have cost: sums for jobs, for metrics and for traces.

Which step is launched next is `scheduler`; how long steps take is `step_times`; the prices of tokens are `cost_model`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from onepass.attention.base import StepShape
from onepass.engine.contexts.cache import CachedContext
from onepass.engine.cost_model import CostModel
from onepass.engine.job import Job
from onepass.engine.packing import Packed, Part
from onepass.engine.runner import StepOutput
from onepass.engine.trace.step import CollectedStep, record

SIZES = 16  # a rung's steps are timed by sixteenths of its tokens


@dataclass(frozen=True)
class InFlightStep:
    number: int  # since the engine started
    shape: StepShape
    parts: list[Part]
    packed: Packed
    output: StepOutput
    pages: list[int]  # held for it
    contexts: list[CachedContext]  # that it completes
    needed: list[float]  # FLOPs of each part, without padding
    launched: float
    at: float  # when it was given to the device: after what had to be compiled
    compilations: int

    @property
    def size(self) -> tuple[int, int]:
        """Its rung and the sixteenth that its tokens fill of it: steps of one size take about the same time."""
        return self.shape.tokens, SIZES * self.packed.num_tokens // self.shape.tokens

    @property
    def ready(self) -> bool:
        """Whether its results are there, without waiting for them. Those of a rehearsal are, on the host."""
        arrays: tuple[Any, ...] = (*self.output.logits, self.output.vocabulary)  # JAX does not declare `is_ready`
        return all(array is None or isinstance(array, np.ndarray) or array.is_ready() for array in arrays)


@dataclass
class EngineStats:
    """Sums over every step since the start, for those who watch."""

    steps: int = 0
    rows: int = 0
    tokens: int = 0
    device_seconds: float = 0.0
    flops_done: float = 0.0
    flops_needed: float = 0.0
    hit_tokens: int = 0


class StepStats:
    """Adds up what steps cost. `computed_tokens` are those of a step with so many real ones, padding included."""

    def __init__(self, cost: CostModel, computed_tokens: Callable[[StepShape, int], int]) -> None:
        self._cost = cost
        self._computed_tokens = computed_tokens
        self.totals = EngineStats()

    def add(self, step: InFlightStep, seconds: float) -> None:
        self.totals.steps += 1
        self.totals.rows += len(step.parts)
        self.totals.tokens += step.packed.num_tokens
        self.totals.device_seconds += seconds
        for job in _jobs(step):
            job.stats.device_seconds += seconds
            job.stats.compilations += step.compilations
        # Padding is shared by those whose step it is.
        count = step.packed.num_tokens
        padded = self._computed_tokens(step.shape, count) / max(1, count)
        for part, needed in zip(step.parts, step.needed, strict=True):
            for sums in (part.job.stats, self.totals):
                sums.flops_needed += needed
                sums.flops_done += needed * padded
            part.job.stats.computed_tokens += part.num_tokens

    def add_hit(self, job: Job, cached_tokens: int) -> None:
        """Tokens of a job's context that were kept; once, however often the job is started."""
        self.totals.hit_tokens += cached_tokens - job.stats.cached_tokens
        job.stats.cached_tokens = cached_tokens

    def trace(self, step: InFlightStep, collected: float, seconds: float) -> None:
        """Of the requests that asked for it."""
        traced = [job for job in _jobs(step) if job.trace is not None]
        if not traced:
            return
        computed = self._computed_tokens(step.shape, step.packed.num_tokens)
        done = CollectedStep(
            step.number, step.shape, step.parts, step.packed, computed, step.compilations,
            step.launched, collected, seconds,
        )  # fmt: skip
        for job in traced:
            assert job.trace is not None
            record(done, job, job.trace)

    def needed(self, parts: Iterable[Part]) -> list[float]:
        return [self._needed(part) for part in parts]

    def _needed(self, part: Part) -> float:
        length, items = part.sequence.plan.length, part.family_tokens + part.again
        families = max(1, part.last - part.first)
        needed = self._cost.flops(part.start, part.stop - part.start, 0, 0)
        return needed + self._cost.flops(length, 0, items, items / families)


def _jobs(step: InFlightStep) -> list[Job]:
    return list({id(part.job): part.job for part in step.parts}.values())
