"""Who computes on this device: the decided config, the attention, and the products of a layer that go with it.

Chosen once, when a model is loaded. Where our own C++ was chosen and cannot be built, XLA's code takes its place, and
the log says why; where it was asked for by name, that is an error.
"""

import logging
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from onepass.attention.base import Attention
from onepass.attention.mask import plain_causal
from onepass.attention.reference import Reference
from onepass.attention.xla import Xla
from onepass.engine.config import Device, EngineConfig, Kernel, for_device, kernel_problems
from onepass.errors import ConfigError
from onepass.kernels.cpu import build as native
from onepass.models.config import ModelConfig
from onepass.models.layer_ops import LayerOps, XlaLayerOps
from onepass.models.quantize import EIGHT_BIT
from onepass.parallel.split import WHOLE

log = logging.getLogger("onepass")

CPU_PAGE, PAGE = 64, 128  # tokens of a page, where no kernel says


@dataclass(frozen=True)
class Kernels:
    """`problems` says of every kind of attention why it is not used here, or None of those that could be."""

    config: EngineConfig
    attention: Attention
    ops: LayerOps
    problems: dict[Kernel, str | None]

    def __str__(self) -> str:
        others = "; ".join(f"no {name}: {why}" for name, why in self.problems.items() if why and name in ("amx", "cpu"))
        return f"attention {self.attention.name}" + (
            f" ({others})" if self.config.attention == "xla" and others else ""
        )


def kernels_for(
    wanted: EngineConfig, device: Device, share: ModelConfig, dtype: Any, eight_bit: bool = False, build: bool = True
) -> Kernels:
    """`share` is one device's part of the model; `eight_bit`: its layers' weights are quantized. Without `build` our
    C++ is taken to be buildable."""
    sixteen_bit = jnp.dtype(dtype).itemsize == 2
    weight_bytes = share.num_parameters * (1 if eight_bit else jnp.dtype(dtype).itemsize)
    decided = for_device(wanted, device, sixteen_bit, share.head_dim, weight_bytes)
    problems: dict[Kernel, str | None] = dict(
        kernel_problems(device, sixteen_bit, share.head_dim, decided.tp or 1, wanted.quantize)
    )
    load_cpu = native.load_cpu_int8 if wanted.quantize == "int8" else native.load_cpu
    ours: tuple[tuple[Kernel, Any], ...] = (("amx", native.load_amx), ("cpu", load_cpu))
    for name, load in ours:
        if build and decided.attention == name and (problem := _build_problem(load)) is not None:
            if wanted.attention == name:
                raise ConfigError(f"attention={name!r} cannot be used here: {problem}")
            log.warning("attention %s was not built: %s", name, problem)
            problems[name] = problem
            others: tuple[Kernel, ...] = ("cpu", "xla") if name == "amx" else ("xla",)
            decided = replace(decided, attention=next(other for other in others if problems[other] is None))
    attention, ops = _chosen(decided, device, share, eight_bit)
    return Kernels(decided, attention, ops, problems)


def without_isolation(page: int) -> Attention:
    """Attention with a plain causal mask over the whole step: what an isolation check must catch."""
    return Reference(rule=plain_causal, name="plain-causal", page=page)


def _build_problem(load: Any) -> str | None:
    try:
        load()
    except native.NotBuilt as why:
        return str(why)
    return None


def _chosen(decided: EngineConfig, device: Device, share: ModelConfig, eight_bit: bool) -> tuple[Attention, LayerOps]:
    ops: LayerOps = XlaLayerOps()
    page = CPU_PAGE if device.platform == "cpu" else PAGE
    attention: Attention = Xla(page=page)
    if decided.attention == "hopper":
        from onepass.kernels.hopper.attention import HopperAttention
        from onepass.kernels.hopper.layer_ops import HopperLayerOps

        narrow = EIGHT_BIT if eight_bit else None
        attention = HopperAttention(device.multiprocessors, share.group, narrow)
        ops = HopperLayerOps(device.multiprocessors)
    elif decided.attention == "pallas-tpu":
        from onepass.kernels.tpu.attention import TpuAttention

        attention = TpuAttention()
    elif decided.attention == "amx":
        from onepass.kernels.cpu.attention import AmxAttention
        from onepass.kernels.cpu.layer_ops import AmxLayerOps

        attention, ops = AmxAttention(), AmxLayerOps()
    elif decided.attention == "cpu":
        from onepass.kernels.cpu.attention import CpuAttention
        from onepass.kernels.cpu.line_ops import CpuLayerOps

        attention = CpuAttention(share.group)
        if share.split == WHOLE and (not eight_bit or decided.quantize == "int8"):
            ops = CpuLayerOps()
    if decided.mask == "dense":
        attention = Reference(block_bytes=None, name="dense", page=attention.page)
    return attention, ops
