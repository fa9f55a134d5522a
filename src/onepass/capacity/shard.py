"""A model on some devices of a target: `tp` of them share one copy of it.

The only place of this package that knows how a model is split (`models.layout`); everything else asks what one device
holds and computes.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, Mesh

from onepass.engine.cost_model import CostModel
from onepass.models.config import ModelConfig
from onepass.models.layout import Layout, share_of
from onepass.parallel.split import AXIS
from onepass.parallel.topology import Topology


@dataclass(frozen=True)
class Share:
    """`config` is the whole model's. A `tp` that cannot split its heads is a `ConfigError`."""

    config: ModelConfig
    dtype: np.dtype[Any]
    tp: int = 1

    def __post_init__(self) -> None:
        assert self.one_device.num_heads > 0  # asks the layout, which refuses what cannot be split

    @cached_property
    def layout(self) -> Layout:
        """Over devices that are only counted."""
        return Layout(self.config, AbstractMesh((self.tp,), (AXIS,)))  # type: ignore[arg-type]

    def layout_on(self, topology: Topology) -> Layout:
        """Over the first devices of a topology that is not here, as its compiler knows them."""
        devices = topology.devices()
        whole = self.tp == len(devices)
        mesh = topology.mesh({AXIS: self.tp}) if whole else Mesh(np.array(devices[: self.tp]), (AXIS,))
        return Layout(self.config, mesh)

    @property
    def one_device(self) -> ModelConfig:
        """What each device computes, as if it were a model."""
        return share_of(self.config, self.tp)

    @cached_property
    def cost(self) -> CostModel:
        """Of one device."""
        return CostModel(self.one_device, self.dtype.itemsize)
