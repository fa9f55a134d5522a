"""The engine's options, decided and checked once, before anything is built.

What "auto" means on a machine is settled here (`for_device`); no other module asks which device it is on.
"""

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

from onepass.api import MODES, Mode
from onepass.errors import ConfigError
from onepass.kernels.cpu import build as native

Mask = Literal["auto", "dense", "segment"]
Kernel = Literal["xla", "cpu", "amx", "hopper", "pallas-tpu"]
KERNELS: tuple[Kernel, ...] = ("xla", "cpu", "amx", "hopper", "pallas-tpu")
Quantize = Literal["fp8", "int8"]
QUANTIZE: tuple[Quantize, ...] = ("fp8", "int8")
HOPPER_HEADS = (64, 128)  # the sizes of heads that `attention.hopper` takes


@dataclass(frozen=True)
class EngineConfig:
    """`None` means: decide for the device. `for_device` returns a config without None."""

    mode: Mode = "auto"
    mask: Mask = "auto"
    chunk_size: int = 32  # items per copy of the context, mode "chunked"
    extend_batch_size: int | None = None  # items per step, mode "extend"; None: as many as max_batch_tokens holds
    max_batch_tokens: int | None = None  # of a step: the largest program
    steps_in_flight: int | None = None  # given to the device before the first is waited for
    cache_bytes: int | None = None
    memory_bytes: int | None = None  # what programs, weights and contexts may take together
    attention: Kernel | None = None  # who computes it, under every mask but dense
    quantize: Quantize | None = None  # the layers' weights, and what kernels multiply them with where they can
    programs_dir: Path | None = None  # where compiled programs are kept; None: in the user's cache
    keep_programs: bool = True
    tp: int | None = None  # devices that share the model; memory and cache bytes are those of each
    dp: int | None = None  # replicas of it
    warm_up: bool = False  # compile or load every program before the first request

    def __post_init__(self) -> None:
        _among("mode", self.mode, MODES)
        _among("mask", self.mask, ("auto", "dense", "segment"))
        _among("attention", self.attention, (None, *KERNELS))
        _among("quantize", self.quantize, (None, *QUANTIZE))
        for name in (
            "chunk_size",
            "extend_batch_size",
            "max_batch_tokens",
            "steps_in_flight",
            "memory_bytes",
            "tp",
            "dp",
        ):
            value = getattr(self, name)
            if value is not None and not _whole_number(value, 1):
                raise ConfigError(f"{name} must be a whole number of at least 1; got {value!r}")
        if self.cache_bytes is not None and not _whole_number(self.cache_bytes, 0):
            raise ConfigError(f"cache_bytes must be a whole number, 0 or more; got {self.cache_bytes!r}")
        for name in ("warm_up", "keep_programs"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false; got {getattr(self, name)!r}")
        if self.max_batch_tokens is not None and self.max_batch_tokens < 16:
            raise ConfigError(f"max_batch_tokens must be at least 16; got {self.max_batch_tokens}")

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> "EngineConfig":
        unknown = options.keys() - {f.name for f in fields(cls)}
        if unknown:
            known = ", ".join(f.name for f in fields(cls))
            raise ConfigError(f"unknown engine options: {', '.join(sorted(unknown))}; known: {known}")
        return cls(**options)


class EngineOptions(TypedDict, total=False):
    """`EngineConfig`'s fields as keyword arguments, so that an editor shows them; a test holds the two together."""

    mode: Mode
    mask: Mask
    chunk_size: int
    extend_batch_size: int | None
    max_batch_tokens: int | None
    steps_in_flight: int | None
    cache_bytes: int | None
    memory_bytes: int | None
    attention: Kernel | None
    quantize: Quantize | None
    programs_dir: Path | None
    keep_programs: bool
    tp: int | None
    dp: int | None
    warm_up: bool


@dataclass(frozen=True)
class Device:
    """What the engine decides by: which kernels can run on the device, and how much fits it."""

    platform: str
    memory_bytes: int
    hopper: bool = False  # whether it has wgmma and TMA
    multiprocessors: int = 0
    no_amx: str | None = "not a CPU"  # why our C++ for AMX is of no use here; None: it is
    no_cpu: str | None = "not a CPU"  # why our C++ for other CPUs is of no use here


def for_device(
    config: EngineConfig, device: Device, sixteen_bit: bool, head_dim: int, weight_bytes: int = 0
) -> EngineConfig:
    """The config with every "decide for me" decided, for weights of so many bytes on each device."""
    fast = device.platform != "cpu"
    memory = config.memory_bytes or device.memory_bytes
    problems = kernel_problems(device, sixteen_bit, head_dim, config.tp or 1, config.quantize)
    if config.attention is not None and (problem := problems[config.attention]) is not None:
        raise ConfigError(f"attention={config.attention!r} cannot be used here: {problem}")
    attention = config.attention or next(name for name in reversed(KERNELS) if problems[name] is None)
    return replace(
        config,
        # On a CPU others wait for a step that takes long; but our own products read all weights once per step.
        max_batch_tokens=config.max_batch_tokens or (16384 if fast else 2048 if attention == "amx" else 1024),
        # On an accelerator the host packs the next step meanwhile. A CPU has the same cores for both, and a small
        # request would only wait for one more step.
        steps_in_flight=config.steps_in_flight or (2 if fast else 1),
        memory_bytes=memory,
        cache_bytes=_default_cache(memory, weight_bytes, fast) if config.cache_bytes is None else config.cache_bytes,
        attention=attention,
        tp=config.tp or 1,
        dp=config.dp or 1,
    )


def _default_cache(memory: int, weight_bytes: int, accelerator: bool) -> int:
    """A quarter of a device, and no more than a third of what the weights leave free; a CPU's memory is everybody's.
    Rounded, for the pool's size is part of every program, and what a device says of its memory may differ a little from
    one start to the next."""
    if not accelerator:
        return min(memory // 8, 1 << 30)
    unit = 1 << 30 if memory >= 16 << 30 else 1 << 26
    return max(0, min(memory // 4, (memory - weight_bytes) // 3)) // unit * unit


def kernel_problems(
    device: Device, sixteen_bit: bool, head_dim: int, tp: int, quantize: Quantize | None = None
) -> dict[Kernel, str | None]:
    """Why each kind of attention cannot be used here; None where it can."""
    hopper = tpu = None
    if not device.hopper:
        hopper = f"it needs a Hopper GPU; this is {device.platform}"
    elif not sixteen_bit or head_dim not in HOPPER_HEADS:
        sizes = " or ".join(map(str, HOPPER_HEADS))
        hopper = f"it needs 16 bits and heads of {sizes}; got {16 if sixteen_bit else 32} bits and heads of {head_dim}"
    if device.platform != "tpu":
        tpu = f"it needs a TPU; this is {device.platform}"
    amx = device.no_amx
    if amx is None and head_dim % 32:
        amx = f"it needs heads in thirty-twos, and this model's are {head_dim} wide"
    if amx is None and quantize == "int8":
        amx = "weights in int8 are multiplied by the general kernels"
    if amx is None and tp > 1:
        amx = f"it needs a model on one device, and this one is on {tp}"
    return {"xla": None, "cpu": device.no_cpu, "amx": amx, "hopper": hopper, "pallas-tpu": tpu}


def describe_device(used: int = 1) -> Device:
    """One of `used` JAX devices."""
    import jax

    device = jax.local_devices()[0]
    if device.platform == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        # Devices of a CPU are parts of one machine.
        return Device(
            "cpu",
            int(memory * 0.8) // used,
            no_amx=native.amx_problem(),
            no_cpu=native.cpu_problem(),
        )
    stats = device.memory_stats() or {}
    memory = int(stats.get("bytes_limit", 16 << 30))
    hopper = str(getattr(device, "compute_capability", "")) == "9.0"
    return accelerator(device.platform, memory, hopper, int(getattr(device, "core_count", 0)))


def accelerator(platform: str, memory_bytes: int, hopper: bool = False, multiprocessors: int = 0) -> Device:
    """Any device that is no CPU."""
    return Device(platform, memory_bytes, hopper, multiprocessors)


def _whole_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _among(name: str, value: str | None, allowed: tuple[str | None, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(filter(None, allowed))}; got {value!r}")
