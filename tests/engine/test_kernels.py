"""Who computes is chosen at load: our C++ where it can run; where it cannot, XLA, by name in the log."""

import logging
from dataclasses import replace

import pytest

from onepass.engine.config import Device, EngineConfig, for_device
from onepass.engine.kernels import kernels_for
from onepass.errors import ConfigError
from onepass.models.known import known_config
from onepass.native import build

PLAIN = Device("cpu", 16 << 30, 3e11, 3e10, 5e-4, no_amx="needs a CPU with amx_bf16")
AMX = replace(PLAIN, no_amx=None)
SHARE = known_config("smollm2-135m")


def no_compiler() -> None:
    raise build.NotBuilt("c++ failed: no tiles here")


@pytest.mark.parametrize("sixteen_bit", [False, True])
def test_a_cpu_with_amx_computes_with_our_own_code(sixteen_bit: bool) -> None:
    assert for_device(EngineConfig(), AMX, sixteen_bit, head_dim=64).attention == "amx"
    assert for_device(EngineConfig(attention="cascade"), AMX, sixteen_bit, head_dim=64).attention == "cascade"


def test_our_own_code_takes_larger_steps_on_a_cpu() -> None:
    """It reads all weights once a step, so that a request of 2,000 tokens is best done in one."""
    steps = [for_device(EngineConfig(), device, sixteen_bit=True, head_dim=64) for device in (AMX, PLAIN)]
    assert [config.max_batch_tokens for config in steps] == [2048, 1024]


@pytest.mark.parametrize(
    ("device", "sixteen_bit", "head_dim", "tp", "why"),
    [
        (PLAIN, True, 64, 1, "amx_bf16"),
        (PLAIN, False, 64, 1, "amx_bf16"),
        (AMX, True, 80, 1, "80 wide"),
        (AMX, True, 64, 2, "is on 2"),
    ],
)
def test_elsewhere_it_is_xlas_and_asking_for_it_is_an_error(
    device: Device, sixteen_bit: bool, head_dim: int, tp: int, why: str
) -> None:
    assert for_device(EngineConfig(tp=tp), device, sixteen_bit, head_dim).attention == "cascade"
    with pytest.raises(ConfigError, match=why):
        for_device(EngineConfig(tp=tp, attention="amx"), device, sixteen_bit, head_dim)


def test_the_log_says_who_computes_and_why() -> None:
    assert "without amx: needs a CPU with amx_bf16" in str(kernels_for(EngineConfig(), PLAIN, SHARE, sixteen_bit=True))
    assert str(kernels_for(EngineConfig(attention="cascade"), AMX, SHARE, sixteen_bit=False)).startswith(
        "attention cas"
    )


def test_code_that_cannot_be_built_is_told_and_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build, "load", no_compiler)
    with caplog.at_level(logging.WARNING, "onepass"):
        kernels = kernels_for(EngineConfig(), AMX, SHARE, sixteen_bit=True)
    assert (kernels.config.attention, kernels.attentions["cascade"].name) == ("cascade", "cascade")
    assert "no tiles here" in caplog.text
    with pytest.raises(ConfigError, match="no tiles here"):
        kernels_for(EngineConfig(attention="amx"), AMX, SHARE, sixteen_bit=True)
