"""Every engine option is checked before anything is built, and what is left open is decided once for the device."""

from dataclasses import fields
from typing import Any

import pytest

from onepass.engine.config import Device, EngineConfig, describe_device
from onepass.engine.kernels import for_device
from onepass.errors import ConfigError
from onepass.kernels.cpu import build

CPU = Device("cpu", 1 << 30)
GPU = Device("gpu", 1 << 36)
TPU = Device("tpu", 1 << 35)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("mode", "fast", "one of auto, serial, packed, chunked, extend; got 'fast'"),
        ("mode", None, "got None"),
        ("mask", "causal", "one of auto, dense, segment; got 'causal'"),
        ("chunk_size", 0, "at least 1; got 0"),
        ("chunk_size", -3, "at least 1"),
        ("chunk_size", 2.0, "whole number"),
        ("chunk_size", True, "got True"),
        ("chunk_size", "8", "got '8'"),
        ("extend_batch_size", 0, "at least 1"),
        ("extend_batch_size", 1.5, "whole number"),
        ("max_batch_tokens", 15, "at least 16; got 15"),
        ("max_batch_tokens", 0, "got 0"),
        ("max_batch_tokens", "4096", "whole number"),
        ("memory_bytes", 0, "at least 1"),
        ("memory_bytes", 1e9, "whole number"),
        ("cache_bytes", -1, "0 or more; got -1"),
        ("cache_bytes", 0.5, "whole number"),
        ("cache_bytes", "1GB", "whole number"),
        ("cache_bytes", True, "got True"),
        ("attention", "flash", "one of xla, cpu, amx, hopper, pallas-tpu; got 'flash'"),
        ("keep_programs", "no", "true or false; got 'no'"),
        ("warm_up", None, "true or false"),
        ("warm_up", 5, "true or false; got 5"),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(name: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**{name: value})
    assert name in str(caught.value)
    assert says in str(caught.value)


def test_options_at_their_limits_are_taken() -> None:
    EngineConfig(chunk_size=1, extend_batch_size=1, max_batch_tokens=16, cache_bytes=0, warm_up=True)


def test_an_unknown_option_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match="unknown engine options: chunksize, speed; known: mode, mask") as caught:
        EngineConfig.from_options({"speed": 11, "chunksize": 4, "mode": "extend"})
    for field in fields(EngineConfig):
        assert field.name in str(caught.value)


def test_options_become_the_config() -> None:
    assert EngineConfig.from_options({"mode": "extend", "chunk_size": 4}) == EngineConfig(mode="extend", chunk_size=4)


@pytest.mark.parametrize("device", [CPU, GPU, TPU])
def test_deciding_for_a_device_leaves_nothing_open(device: Device) -> None:
    decided = for_device(EngineConfig(), device, sixteen_bit=True, head_dim=64)
    open_options = {"extend_batch_size", "programs_dir", "quantize"}  # None is a meaning of its own for these
    assert {f.name for f in fields(decided) if getattr(decided, f.name) is None} <= open_options
    assert decided.memory_bytes == device.memory_bytes
    assert decided.cache_bytes is not None
    assert 0 < decided.cache_bytes < device.memory_bytes


def test_what_was_asked_for_is_not_decided_again() -> None:
    asked = EngineConfig(
        max_batch_tokens=64,
        steps_in_flight=1,
        cache_bytes=0,
        memory_bytes=12345,
        attention="xla",
        quantize_activations=False,
        tp=1,
        dp=1,
    )
    assert for_device(asked, GPU, sixteen_bit=True, head_dim=64) == asked


HOPPER = Device("gpu", 1 << 36, hopper=True, multiprocessors=132)


@pytest.mark.parametrize(
    ("device", "sixteen_bit", "head_dim", "why"),
    [
        (GPU, True, 64, "needs a Hopper GPU; this is gpu"),
        (HOPPER, False, 64, "needs 16 bits and heads of 64 or 128; got 32 bits"),
        (HOPPER, True, 80, "and heads of 80"),
    ],
)
def test_a_kernel_that_cannot_run_here_is_refused(device: Device, sixteen_bit: bool, head_dim: int, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        for_device(EngineConfig(attention="hopper"), device, sixteen_bit, head_dim)
    assert for_device(EngineConfig(), device, sixteen_bit, head_dim).attention == "xla"


def test_on_a_hopper_gpu_the_attention_is_its_kernel() -> None:
    assert for_device(EngineConfig(), HOPPER, sixteen_bit=True, head_dim=128).attention == "hopper"


def test_on_a_tpu_the_whole_attention_is_the_tpu_kernel_unless_another_is_asked_for() -> None:
    assert for_device(EngineConfig(), TPU, sixteen_bit=True, head_dim=64).attention == "pallas-tpu"
    assert for_device(EngineConfig(attention="xla"), TPU, sixteen_bit=True, head_dim=64).attention == "xla"
    assert for_device(EngineConfig(), GPU, sixteen_bit=True, head_dim=64).attention == "xla"


@pytest.mark.parametrize("device", [CPU, GPU])
def test_the_tpu_kernel_elsewhere_is_refused(device: Device) -> None:
    with pytest.raises(ConfigError, match=f"needs a TPU; this is {device.platform}"):
        for_device(EngineConfig(attention="pallas-tpu"), device, sixteen_bit=True, head_dim=64)


def test_the_device_is_described_with_memory_and_what_its_kernels_lack() -> None:
    device = describe_device()
    assert device.memory_bytes > 1 << 28
    assert (device.no_amx, device.no_cpu) == (build.amx_problem(), build.cpu_problem())
    assert describe_device(2).memory_bytes == device.memory_bytes // 2
