"""Seconds and items a second that may be expected of a deployment, and what they are made of.

Three figures, never mixed up: the roofline of the real tokens, which nothing can beat; the roofline of all that is
computed, at the part of it that was reached on another chip; and the compiler's own estimate of its schedule, where
programs were compiled. The slowest is the prediction.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from onepass.capacity.compiler import Compiled
from onepass.capacity.deployment import Deployment
from onepass.capacity.dry_run import DryRun
from onepass.capacity.roofline import EFFICIENCY, cost_of, fill, least_seconds
from onepass.engine.programs.builder import Program

# What the kernel's own schedule reaches of the matrix units that its heads fill: 1.95 of 2.5 cycles
# (`kernels.tpu.attention`, from the compiler's schedules for a v6e).
KERNEL_EFFICIENCY = 0.78


@dataclass(frozen=True)
class Prediction:
    """Of one request on one copy, in seconds, and of all copies together, in items a second."""

    roofline: float
    at_efficiency: float
    scheduled: float | None
    items: int
    copies: int

    @property
    def seconds(self) -> float:
        return max(self.at_efficiency, self.scheduled or 0.0)

    def rate(self, seconds: float) -> float:
        return self.copies * self.items / seconds

    @property
    def items_per_second(self) -> float:
        return self.rate(self.seconds)

    @property
    def basis(self) -> str:
        return "the compiler's schedule" if self.seconds == self.scheduled else f"{EFFICIENCY:.1%} of the roofline"


def predict(deployment: Deployment, rehearsed: DryRun, items: int, compiled: Sequence[Compiled] = ()) -> Prediction:
    """`items` are those of the whole workload. The roofline counts real tokens alone; what may be expected counts the
    padding that is computed, too: none of it, nearly, where kernels stop at the last real token."""
    share, target = deployment.share, deployment.target

    def seconds(padded: bool) -> float:
        return sum(n * least_seconds(cost_of(share, step, padded), target, share) for step, n in rehearsed.steps)

    scheduled = _scheduled(deployment, rehearsed, {one.program: one for one in compiled})
    return Prediction(seconds(padded=False), seconds(padded=True) / EFFICIENCY, scheduled, items, deployment.dp)


def _scheduled(deployment: Deployment, rehearsed: DryRun, compiled: dict[Program, Compiled]) -> float | None:
    """How much an attention kernel computes is data: the rehearsed step says it, not the compiler's schedule."""
    share, target = deployment.share, deployment.target
    if target.chip.cycles is None or not all(program in compiled for program in rehearsed.programs):
        return None
    kernels = target.flops(share.dtype) * fill(target, share) * KERNEL_EFFICIENCY
    total = 0.0
    for step, count in rehearsed.steps:
        called, cost = [compiled[program] for program in step.programs], cost_of(share, step, padded=True)
        attention = cost.attention_flops if any(one.kernel_flops for one in called) else 0.0
        cycles = sum(one.cycles for one in called)
        total += count * (cycles / target.chip.cycles + attention / kernels + cost.sent / target.chip.link)
    return total
