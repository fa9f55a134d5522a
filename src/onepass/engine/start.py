"""`start_engines`: the engines of a model whose weights are on the devices, one per replica, with kernels chosen.

Where the weights lie is decided before (`load`); what a caller asks of the engines is `onepass.scorer`.
"""

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax

from onepass.attention.base import Attention
from onepass.engine.config import EngineConfig, describe_device
from onepass.engine.engine import Engine, EngineParts
from onepass.engine.kernels import Kernels, kernels_for
from onepass.engine.load import quantization_of
from onepass.engine.programs.kept import kept_programs
from onepass.engine.replicas import Replicas
from onepass.loading.model import Model
from onepass.models.layout import Layout, mesh_of
from onepass.models.weights import Weights
from onepass.parallel.meshes import replica_meshes

if TYPE_CHECKING:  # several hosts need what only the server's installation brings
    from onepass.engine.multihost.leader import FollowerSet

log = logging.getLogger("onepass")


@dataclass(frozen=True)
class EngineSet:
    """`tp` devices share the weights of each engine; `front` takes the requests of all."""

    kernels: Kernels
    tp: int
    engines: list[Engine]
    front: Engine | Replicas


def start_engines(
    model: Model,
    weights: Weights,
    config: EngineConfig,
    attention: Attention | None = None,
    followers: "FollowerSet | None" = None,
) -> EngineSet:
    """`attention` takes the place of the device's own. The weights of the first engine are those that are given; the
    others get copies."""
    config = replace(config, quantize=quantization_of(weights))
    mesh = mesh_of(weights)
    tp, dp = 1 if mesh is None else mesh.size, config.dp or 1
    device = describe_device(tp * dp)
    shard = Layout(model.config, mesh).share
    kernels = kernels_for(replace(config, tp=tp), device, shard, weights.embed.dtype, weights.layers.in_eight_bits)
    log.info("%s on %s: %s", model.name, device.platform, kernels)
    chosen = attention or kernels.attention
    parts = EngineParts(model.config, weights, kernels.config, device, chosen, kernels.ops, mesh)
    kept = attention is None and config.keep_programs
    engines = [Engine(model, parts, kept_programs(parts) if kept else None, followers)]
    for other in replica_meshes(jax.devices(), tp, dp)[1:]:
        copy = Layout(model.config, other).placed(weights)
        parts = replace(parts, weights=copy, mesh=other)
        engines.append(Engine(model, parts, kept_programs(parts) if kept else None))
    return EngineSet(kernels, tp, engines, engines[0] if dp == 1 else Replicas(engines))
