"""Weights in int8 get the scales that the kernels take which will multiply them."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import pytest

from onepass.engine import kernels, load
from onepass.engine.config import Device, EngineConfig
from onepass.kernels.cpu.int8_dot import int8_dot
from onepass.models.known import known_config

PLAIN = Device("cpu", 16 << 30, no_amx="no AMX here", no_cpu=None)
AMX = replace(PLAIN, no_amx=None)
VNNI = replace(PLAIN, memory_bytes=8 << 30)
MODEL = known_config("smollm2-135m")


@pytest.mark.parametrize(
    ("device", "given", "scales"),
    [
        (AMX, {}, "coarse"),
        (AMX, {"quantize_activations": False}, "fine"),
        (AMX, {"attention": "cpu"}, "paired"),
        (AMX, {"attention": "xla"}, "fine"),
        (PLAIN, {}, "paired"),
        (PLAIN, {"quantize_activations": False}, "fine"),
        (VNNI, {}, "medium"),
        (VNNI, {"quantize_activations": False}, "fine"),
        (VNNI, {"attention": "xla"}, "fine"),
    ],
)
def test_scales_are_those_of_the_instructions_that_multiply_integers(
    device: Device, given: dict[str, Any], scales: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dot = int8_dot({"avx512f", "avx512bw", *({"avx512_vnni"} if device == VNNI else ())})
    for module in (load, kernels):
        monkeypatch.setattr(module, "int8_dot", lambda: dot)
    monkeypatch.setattr(load, "describe_device", lambda: device)
    config = EngineConfig(**given)
    assert load.int8_scales(config, MODEL, jnp.dtype(jnp.bfloat16), "int8") == scales
    assert load.int8_scales(config, MODEL, jnp.dtype(jnp.bfloat16), None) is None
    if scales in ("paired", "medium"):
        return
    for change in ({"mlp_size": 1568}, {"mlp_bias": True}):
        other = replace(MODEL, **change)  # type: ignore[arg-type]
        assert load.int8_scales(config, other, jnp.dtype(jnp.bfloat16), "int8") == "fine"
    odd = replace(MODEL, head_dim=80)
    others = "paired" if scales == "coarse" else "fine"  # AMX's attention takes no such heads
    assert load.int8_scales(config, odd, jnp.dtype(jnp.bfloat16), "int8") == others
