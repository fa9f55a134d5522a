"""The engine's options, decided and checked once, before anything is built.

What "auto" means on a machine is settled here (`for_device`); no other module asks which device it is on.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from onepass.api import MODES, Mode
from onepass.errors import ConfigError
from onepass.native import build as native

Mask = Literal["auto", "dense", "segment"]
Dense = Literal["xla", "cudnn"]
Band = Literal["xla", "triton"]
Kernel = Literal["cascade", "amx", "hopper", "pallas-tpu"]
Quantize = Literal["fp8"]
HOPPER_HEADS = (64, 128)  # the sizes of heads that `attention.hopper` takes


@dataclass(frozen=True)
class EngineConfig:
    """`None` means: decide for the device. `for_device` returns a config without None."""

    mode: Mode = "auto"
    mask: Mask = "auto"
    dense_mask_tokens: int = 256  # mask="auto": rows up to this many tokens take the dense mask
    chunk_size: int = 32  # items a row, mode "chunked"
    extend_batch_size: int | None = None  # items a step, mode "extend"; None: as many as max_batch_tokens holds
    max_batch_tokens: int | None = None
    steps_in_flight: int | None = None  # given to the device before the first is waited for
    cache_bytes: int | None = None
    memory_bytes: int | None = None  # what programs, weights and contexts may take together
    dense: Dense | None = None  # who computes the maskless blocks of the cascade
    band: Band | None = None  # who computes the items' own band
    attention: Kernel | None = None  # who computes all of it, in every mode but serial and under every mask but dense
    quantize: Quantize | None = None  # the layers' weights, and what kernels multiply them with where they can
    compile_cache: Path | None = None
    background_compile: bool = True
    tp: int | None = None  # devices that share the model; memory and cache bytes are those of each
    dp: int | None = None  # replicas of it
    warm_up: tuple[tuple[int, int, int], ...] = field(default=())  # (query tokens, items, tokens an item)

    def __post_init__(self) -> None:
        _among("mode", self.mode, MODES)
        _among("mask", self.mask, ("auto", "dense", "segment"))
        _among("dense", self.dense, (None, "xla", "cudnn"))
        _among("band", self.band, (None, "xla", "triton"))
        _among("attention", self.attention, (None, "cascade", "amx", "hopper", "pallas-tpu"))
        _among("quantize", self.quantize, (None, "fp8"))
        for name in (
            "chunk_size",
            "dense_mask_tokens",
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
        if not isinstance(self.background_compile, bool):
            raise ConfigError(f"background_compile must be true or false; got {self.background_compile!r}")
        if self.max_batch_tokens is not None and self.max_batch_tokens < 16:
            raise ConfigError(f"max_batch_tokens must be at least 16; got {self.max_batch_tokens}")
        for shape in self.warm_up if isinstance(self.warm_up, Sequence) else (self.warm_up,):
            if not isinstance(shape, Sequence) or len(shape) != 3 or not all(_whole_number(n, 1) for n in shape):
                raise ConfigError(
                    f"warm_up takes (query tokens, items, tokens an item), each at least 1; got {shape!r}"
                )

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> "EngineConfig":
        unknown = options.keys() - {f.name for f in fields(cls)}
        if unknown:
            known = ", ".join(f.name for f in fields(cls))
            raise ConfigError(f"unknown engine options: {', '.join(sorted(unknown))}; known: {known}")
        return cls(**options)


@dataclass(frozen=True)
class Device:
    """What the planner's cost model knows of the machine: rates, not promises."""

    platform: str
    memory_bytes: int
    flops: float  # a second, in the large products
    bytes_per_second: float
    dispatch_seconds: float  # cost of one more step
    hopper: bool = False  # whether it has wgmma and TMA
    multiprocessors: int = 0
    no_amx: str | None = "not a CPU"  # why our C++ for AMX is of no use here; None: it is


def for_device(config: EngineConfig, device: Device, sixteen_bit: bool, head_dim: int) -> EngineConfig:
    """The config with every "decide for me" decided."""
    fast = device.platform != "cpu"
    memory = config.memory_bytes or device.memory_bytes
    cudnn = device.platform in ("gpu", "cuda") and sixteen_bit
    if config.dense == "cudnn" and not cudnn:
        raise ConfigError(f"dense='cudnn' needs an NVIDIA GPU and bfloat16; this is {device.platform}")
    if config.band == "triton" and not cudnn:
        raise ConfigError(f"band='triton' needs an NVIDIA GPU and bfloat16; this is {device.platform}")
    tpu = device.platform == "tpu"
    hopper = device.hopper and sixteen_bit and head_dim in HOPPER_HEADS
    if config.attention == "hopper" and not hopper:
        raise ConfigError(
            f"attention='hopper' needs a Hopper GPU, 16 bits, heads of {' or '.join(map(str, HOPPER_HEADS))}; this is "
            f"{device.platform}{'' if device.hopper else ', not Hopper'}, {16 if sixteen_bit else 32} bits, heads of "
            f"{head_dim}"
        )
    no_amx = device.no_amx or _no_amx(head_dim, config.tp or 1)
    if config.attention == "amx" and no_amx:
        raise ConfigError(f"attention='amx' cannot be used here: {no_amx}")
    if config.attention == "pallas-tpu" and not tpu:
        raise ConfigError(f"attention='pallas-tpu' needs a TPU; this is {device.platform}")
    attention = config.attention or _attention(tpu, hopper, not no_amx)
    return replace(
        config,
        # On a CPU others wait for a step that takes long; but our own code reads all weights once a step.
        max_batch_tokens=config.max_batch_tokens or (16384 if fast else 2048 if attention == "amx" else 1024),
        # On an accelerator the host packs the next step meanwhile. A CPU has the same cores for both, and a small
        # request would only wait for one more step.
        steps_in_flight=config.steps_in_flight or (2 if fast else 1),
        memory_bytes=memory,
        cache_bytes=memory // 4 if config.cache_bytes is None else config.cache_bytes,
        dense=config.dense or ("cudnn" if cudnn else "xla"),
        band=config.band or ("triton" if cudnn else "xla"),
        attention=attention,
        tp=config.tp or 1,
        dp=config.dp or 1,
    )


def _attention(tpu: bool, hopper: bool, amx: bool) -> Kernel:
    return "pallas-tpu" if tpu else "hopper" if hopper else "amx" if amx else "cascade"


def _no_amx(head_dim: int, tp: int) -> str | None:
    if head_dim % 32:
        return f"it needs heads in thirty-twos, and this model's are {head_dim} wide"
    return None if tp == 1 else f"it needs a model on one device, and this one is on {tp}"


def describe_device(used: int = 1) -> Device:
    """One of `used` JAX devices. Rates are measured ceilings of the kinds of machine we know (docs/performance.md)."""
    import jax

    device = jax.local_devices()[0]
    if device.platform == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        # Devices of a CPU are parts of one machine.
        return Device("cpu", int(memory * 0.8) // used, 3e11 / used, 3e10 / used, 5e-4, no_amx=native.problem())
    stats = device.memory_stats() or {}
    memory = int(stats.get("bytes_limit", 16 << 30))
    hopper = str(getattr(device, "compute_capability", "")) == "9.0"
    return accelerator(device.platform, memory, hopper, int(getattr(device, "core_count", 0)))


def accelerator(platform: str, memory_bytes: int, hopper: bool = False, multiprocessors: int = 0) -> Device:
    """Any device that is no CPU, with the rates that order the modes on it."""
    return Device(platform, memory_bytes, 5e14, 3.5e12, 5e-4, hopper, multiprocessors)


def _whole_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _among(name: str, value: str | None, allowed: tuple[str | None, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(filter(None, allowed))}; got {value!r}")
