"""The engine's options, decided and checked once, before anything is built.

What None means on a machine is decided in `kernels.for_device`; `describe_device` is the only place that asks JAX
which device this is.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypedDict

from onepass.api import MODES, Mode
from onepass.errors import ConfigError
from onepass.kernels.cpu import build as native
from onepass.limits import usable_memory

Mask = Literal["auto", "dense", "segment"]
Kernel = Literal["xla", "cpu", "amx", "hopper", "pallas-tpu"]
KERNELS: tuple[Kernel, ...] = ("xla", "cpu", "amx", "hopper", "pallas-tpu")
Quantize = Literal["none", "fp8", "int8", "gguf"]
QUANTIZE: tuple[Quantize, ...] = ("none", "fp8", "int8", "gguf")
HOPPER_HEADS = (64, 128)  # the sizes of heads that `kernels.hopper.attention` takes


@dataclass(frozen=True)
class EngineConfig:
    """`None` means: decide for the device. `kernels.for_device` returns a config without None."""

    mode: Mode = "auto"
    mask: Mask = "auto"
    chunk_size: int = 32  # items per copy of the context, mode "chunked"
    extend_batch_size: int | None = None  # items per step, mode "extend"; None: as many as max_batch_tokens holds
    max_batch_tokens: int | None = None  # of a step: the largest program
    steps_in_flight: int | None = None  # given to the device before the first is waited for
    cache_bytes: int | None = None
    memory_bytes: int | None = None  # what programs, weights and contexts may take together
    attention: Kernel | None = None  # who computes it, under every mask but dense
    quantize: Quantize | None = None  # of weights, and of what kernels multiply them with where they can
    quantize_activations: bool | None = None  # for weights in int8 or GGUF's blocks on CPUs; None: int8, by the CPU
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
        for name in ("warm_up", "keep_programs", "quantize_activations"):
            value = getattr(self, name)
            if not isinstance(value, bool) and not (value is None and name == "quantize_activations"):
                raise ConfigError(f"{name} must be true or false; got {value!r}")
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
    quantize_activations: bool | None
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


def describe_device(used: int = 1) -> Device:
    """One of `used` JAX devices."""
    import jax

    device = jax.local_devices()[0]
    if device.platform == "cpu":
        # Devices of a CPU are parts of one machine.
        return Device(
            "cpu",
            int(usable_memory() * 0.8) // used,
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
