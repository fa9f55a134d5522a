"""A target's chips divided: how many share one copy of the model (tp), how many copies stand side by side (dp).

Every division that the target and the model allow is rehearsed and predicted from the roofline; the fastest that fits
is the best. A model that fits one device is usually copied, not split: copies say nothing to each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onepass.bench.workloads import Workload
from onepass.capacity.chips import GIB, Target
from onepass.capacity.deployment import Deployment
from onepass.capacity.dry_run import DryRun
from onepass.capacity.latency import Prediction, predict
from onepass.capacity.memory import Footprint, estimated
from onepass.capacity.shard import Share
from onepass.engine.config import EngineConfig
from onepass.errors import ConfigError, DoesNotFit
from onepass.models.config import ModelConfig
from onepass.parallel.placement import Machine, Placement, arrange


@dataclass(frozen=True)
class Candidate:
    """`refusal` is why the engine would not run the workload there; the rest is then what it would take."""

    deployment: Deployment
    footprint: Footprint
    rehearsed: DryRun
    prediction: Prediction
    refusal: str | None = None

    @property
    def tp(self) -> int:
        return self.deployment.share.tp

    @property
    def fits(self) -> bool:
        return self.refusal is None and self.footprint.fits

    @property
    def rate(self) -> float:
        return self.prediction.items_per_second if self.fits else 0.0


def candidates(
    target: Target, config: ModelConfig, dtype: np.dtype[Any], engine: EngineConfig, workload: Workload
) -> list[Candidate]:
    """From whole copies to the widest split that the model's heads allow."""
    found = []
    for tp in divisors(target.devices):
        try:
            share = Share(config, dtype, tp)
        except ConfigError:
            continue  # more devices than heads
        found.append(_candidate(Deployment.of(target, share, engine), workload))
    return found


def _candidate(deployment: Deployment, workload: Workload) -> Candidate:
    refusal = None
    try:
        deployment.parts.check_memory()
        rehearsed = deployment.rehearse(workload)
    except (ConfigError, DoesNotFit) as refused:
        refusal, rehearsed = str(refused), deployment.with_larger_pool().rehearse(workload)
    prediction = predict(deployment, rehearsed, workload.num_items)
    return Candidate(deployment, estimated(deployment), rehearsed, prediction, refusal)


def choose(found: Sequence[Candidate], target: Target, tp: int | None) -> tuple[Candidate, str]:
    """The one that was asked for, or the best, and why."""
    if tp is not None:
        chosen = next((one for one in found if one.tp == tp), None)
        if chosen is None:
            raise ConfigError(f"tp must be one of {', '.join(str(o.tp) for o in found)} on {target}; got {tp}")
        return chosen, f"tp {tp} was asked for; {_compared(found, chosen)}"
    fitting = [one for one in found if one.fits]
    if not fitting:
        return found[-1], "no division fits; this is the widest split that the model allows"
    best = max(fitting, key=lambda one: one.rate)
    if len(found) == 1:
        return best, "there is one device"
    return best, f"{_reason(best, fitting[0])}; {_compared(found, best)}"


def _reason(best: Candidate, least_split: Candidate) -> str:
    if best.tp == 1:
        size, there = (bytes_ / GIB for bytes_ in (best.footprint.total, best.footprint.available))
        return f"the model fits one device ({size:.1f} of {there:.1f} GiB), and copies say nothing to each other"
    if best.tp == least_split.tp:
        return f"{best.tp} devices are the fewest that hold the model"
    return f"{best.tp} devices a copy are the fastest"


def _compared(found: Sequence[Candidate], chosen: Candidate) -> str:
    """The others by the chosen one's rate: how fast that is, is said once, by the prediction."""
    others = [one for one in found if one is not chosen]
    if not chosen.fits:
        return ", ".join(f"tp {one.tp} {'fits' if one.fits else 'does not fit'}" for one in (chosen, *others))
    told = [
        f"tp {one.tp} would reach {one.rate / chosen.rate:.0%} of its rate" if one.fits else f"tp {one.tp} does not fit"
        for one in others
    ]
    return ", ".join(told) or "there is no other"


def by_itself(target: Target, config: ModelConfig, dtype: np.dtype[Any]) -> Placement | None:
    """What the engine would choose there without being told; None where it would refuse to start."""
    machine = Machine(target.devices, target.memory_bytes, apart=True)
    try:
        return arrange(None, None, machine, lambda tp: Share(config, dtype, tp).cost.weight_bytes)
    except ConfigError:
        return None


def divisors(count: int) -> list[int]:
    return [n for n in range(1, count + 1) if count % n == 0]
