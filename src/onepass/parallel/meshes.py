"""Devices as meshes of one axis: a mesh for each replica of a model, its devices sharing the model's layers."""

from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh

from onepass.errors import ConfigError
from onepass.parallel.split import AXIS


def replica_meshes(devices: Sequence[jax.Device], tp: int, dp: int) -> list[Mesh]:
    """`dp` meshes of `tp` devices each, neighbours on the wires where that is known."""
    if tp * dp > len(devices):
        raise ConfigError(f"tp={tp} and dp={dp} need {tp * dp} devices; there are {len(devices)}")
    if tp == len(devices):
        return [Mesh(mesh_utils.create_device_mesh((tp,), devices), (AXIS,))]
    return [Mesh(np.array(devices[first : first + tp]), (AXIS,)) for first in range(0, tp * dp, tp)]
