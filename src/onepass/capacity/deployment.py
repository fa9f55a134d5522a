"""A model on a target, for one workload: the engine's configuration there, its steps, and what they need.

How a target's chips are divided is `division`'s choice; here one division is given.
"""

from dataclasses import dataclass, replace

from onepass.bench.workloads import Workload
from onepass.capacity.chips import Target
from onepass.capacity.rehearsal import Rehearsed, rehearse
from onepass.capacity.share import Share
from onepass.engine.config import Device, EngineConfig, accelerator, for_device

ENDLESS = 1 << 60


@dataclass(frozen=True)
class Deployment:
    """`share.tp` devices for one copy of the model; as many copies as the target has room for."""

    target: Target
    share: Share
    engine: EngineConfig

    @classmethod
    def of(cls, target: Target, share: Share, asked: EngineConfig) -> "Deployment":
        """`asked` as the engine would decide it on that device."""
        decided = for_device(asked, device_of(target), share.dtype.itemsize == 2, share.config.head_dim)
        return cls(target, share, replace(decided, background_compile=False))

    @property
    def dp(self) -> int:
        return self.target.devices // self.share.tp

    def rehearse(self, workload: Workload) -> Rehearsed:
        return rehearse(self.share, self.engine, device_of(self.target), workload)

    def rehearse_anyway(self, workload: Workload) -> Rehearsed:
        """As if memory had no end: what would be needed, where the engine refuses."""
        return rehearse(self.share, replace(self.engine, memory_bytes=ENDLESS), device_of(self.target), workload)


def device_of(target: Target) -> Device:
    """As the engine's planner would see it."""
    return accelerator(target.chip.kind, target.memory_bytes, target.chip.hopper)
