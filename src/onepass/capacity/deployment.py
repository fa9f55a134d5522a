"""A model on a target, for one workload: the engine's configuration there, its parts, its steps.

How a target's chips are divided is `parallelism`'s choice; here one division is given.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from onepass.bench.workloads import Workload
from onepass.capacity.chips import Target
from onepass.capacity.dry_run import DryRun, rehearse
from onepass.capacity.shard import Share
from onepass.engine.config import Device, EngineConfig, accelerator
from onepass.engine.kernels import Kernels, kernels_for
from onepass.engine.parts import EngineParts
from onepass.models.layout import Layout


@dataclass(frozen=True)
class Deployment:
    """`share.tp` devices for one copy of the model; as many copies as the target has room for. `engine` is decided."""

    target: Target
    share: Share
    engine: EngineConfig

    @classmethod
    def of(cls, target: Target, share: Share, asked: EngineConfig) -> "Deployment":
        """`asked` as the engine would decide it on that device."""
        return cls(target, share, _kernels(target, share, replace(asked, tp=share.tp)).config)

    @property
    def dp(self) -> int:
        return self.target.devices // self.share.tp

    @cached_property
    def parts(self) -> EngineParts:
        """What an engine would be made of there, over devices that are only counted and weights that are shapes."""
        return self._parts(self.share.layout)

    def compiled_parts(self) -> EngineParts:
        """The same over the devices that the TPU compiler describes."""
        assert self.target.topology is not None
        return self._parts(self.share.layout_on(self.target.topology))

    def _parts(self, layout: Layout) -> EngineParts:
        kernels = _kernels(self.target, self.share, self.engine)
        weights = layout.abstract_weights(self.share.dtype)
        return EngineParts(
            self.share.config, weights, self.engine, device_of(self.target), kernels.attention, kernels.ops, layout.mesh
        )

    def rehearse(self, workload: Workload) -> DryRun:
        """Whether it fits the device's memory is not asked: that is `parts.check_memory`."""
        return rehearse(self.parts, workload)

    def with_larger_pool(self) -> "Deployment":
        """With room for the longest context that the model takes: what would be needed, where the pool is too small."""
        assert self.engine.cache_bytes is not None
        longest = self.share.cost.page_bytes(self.share.config.max_position)
        return replace(self, engine=replace(self.engine, cache_bytes=self.engine.cache_bytes + longest))


def _kernels(target: Target, share: Share, engine: EngineConfig) -> Kernels:
    return kernels_for(engine, device_of(target), share.one_device, share.dtype)


def device_of(target: Target) -> Device:
    """As the engine's planner would see it."""
    return accelerator(target.chip.kind, target.memory_bytes, target.chip.hopper, target.chip.multiprocessors)
