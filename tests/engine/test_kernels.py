"""Who computes is chosen at load: our C++ where it can run; where it cannot, XLA, by name in the log."""

import logging
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from onepass.engine import backends
from onepass.engine import kernels as kernels_module
from onepass.engine.backends import KernelTarget
from onepass.engine.config import KERNELS, Device, EngineConfig
from onepass.engine.kernels import Kernels, for_device, kernels_for
from onepass.errors import ConfigError
from onepass.kernels.cpu import build, libraries
from onepass.kernels.cpu.int8_dot import INT8_DOTS, Int8Dot, bf16_products, int8_dot
from onepass.kernels.cpu.layer_ops import AmxLayerOps
from onepass.kernels.cpu.libraries import Library
from onepass.kernels.cpu.line_ops import CpuLayerOps
from onepass.models.int8 import Int8Scales, layers_in_int8
from onepass.models.known import known_config
from onepass.models.layer_ops import OPERATIONS
from onepass.models.layout import Layout
from onepass.models.weights import Layers

PLAIN = Device("cpu", 16 << 30, no_amx="needs a CPU with amx_bf16", no_cpu="needs AVX2")
AMX, CPU = replace(PLAIN, no_amx=None), replace(PLAIN, no_cpu=None)
SHARE = known_config("smollm2-135m")


def no_compiler_for_tiles(*wanted: Library) -> None:
    if libraries.AMX in wanted:
        raise build.NotBuilt("c++ failed: no tiles here")


@pytest.mark.parametrize("sixteen_bit", [False, True])
def test_a_cpu_with_amx_computes_with_our_own_code(sixteen_bit: bool) -> None:
    assert for_device(EngineConfig(), AMX, sixteen_bit, head_dim=64).attention == "amx"
    assert for_device(EngineConfig(attention="xla"), AMX, sixteen_bit, head_dim=64).attention == "xla"


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
    assert for_device(EngineConfig(tp=tp), device, sixteen_bit, head_dim).attention == "xla"
    with pytest.raises(ConfigError, match=why):
        for_device(EngineConfig(tp=tp, attention="amx"), device, sixteen_bit, head_dim)


def test_without_amx_a_cpu_computes_attention_with_our_own_code_where_it_can() -> None:
    assert for_device(EngineConfig(), CPU, sixteen_bit=False, head_dim=64).attention == "cpu"
    with pytest.raises(ConfigError, match="needs AVX2"):
        for_device(EngineConfig(attention="cpu"), PLAIN, sixteen_bit=False, head_dim=64)


def test_the_log_says_who_computes_and_why() -> None:
    said = str(kernels_for(EngineConfig(), PLAIN, SHARE, jnp.bfloat16))
    assert "no amx: needs a CPU with amx_bf16" in said
    assert "no cpu: needs AVX2" in said
    assert str(kernels_for(EngineConfig(attention="xla"), AMX, SHARE, jnp.float32)).startswith("attention xla")


def test_code_that_cannot_be_built_is_told_and_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build, "load", no_compiler_for_tiles)
    with caplog.at_level(logging.WARNING, "onepass"):
        kernels = kernels_for(EngineConfig(), AMX, SHARE, jnp.bfloat16)
    assert (kernels.config.attention, kernels.attention.name) == ("xla", "xla")
    assert "no tiles here" in caplog.text
    with pytest.raises(ConfigError, match="no tiles here"):
        kernels_for(EngineConfig(attention="amx"), AMX, SHARE, jnp.bfloat16)


def test_code_for_other_instructions_than_weights_are_quantized_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A compiler that does not know a new CPU; sums of 16 bits would saturate, and scores be wrong without a word."""
    monkeypatch.setattr(kernels_module, "int8_dot", lambda: VNNI)
    monkeypatch.setattr(build, "load", lambda *wanted: None)
    config, built = EngineConfig(quantize="int8"), {"name": VNNI.name}
    monkeypatch.setattr(build, "int8_dot_name", lambda library: built["name"])
    assert kernels_for(config, CPU, SHARE, jnp.float32, eight_bit=True).config.attention == "cpu"
    built["name"] = "avx2"
    assert kernels_for(config, CPU, SHARE, jnp.float32, eight_bit=True).config.attention == "xla"
    assert f"by avx2, not by {VNNI.name}" in caplog.text


def test_the_dense_mask_is_the_reference_with_all_of_it_at_once() -> None:
    attention = kernels_for(EngineConfig(mask="dense"), PLAIN, SHARE, jnp.float32).attention
    assert (attention.name, attention.page) == ("dense", 64)


VNNI = next(row for row in INT8_DOTS if row.default)
SLOW = next(row for row in INT8_DOTS if not row.default)


def int8_kernels(monkeypatch: pytest.MonkeyPatch, dot: Int8Dot, config: EngineConfig) -> Kernels:
    monkeypatch.setattr(kernels_module, "int8_dot", lambda: dot)
    return kernels_for(config, CPU, SHARE, jnp.float32, eight_bit=config.quantize == "int8", build=False)


@pytest.mark.parametrize(
    ("quantize", "dot", "asked", "integer"),
    [
        ("int8", VNNI, None, True),
        ("int8", SLOW, None, False),
        ("int8", SLOW, True, True),
        ("int8", VNNI, False, False),
        ("gguf", VNNI, None, False),
        ("gguf", SLOW, True, True),
        (None, VNNI, None, False),
    ],
)
def test_activations_are_quantized_for_int8_weights_where_that_is_faster_or_asked_for(
    quantize: Any, dot: Int8Dot, asked: bool | None, integer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = int8_kernels(monkeypatch, dot, EngineConfig(quantize=quantize, quantize_activations=asked))
    assert isinstance(kernels.ops, CpuLayerOps)
    assert (kernels.ops.integer_products, kernels.config.quantize_activations) == (integer, integer)
    assert (dot.name in str(kernels)) == integer


@pytest.mark.parametrize(("asked", "integer"), [(None, True), (True, True), (False, False)])
def test_amx_multiplies_int8_weights_as_integers_unless_that_is_refused(asked: bool | None, integer: bool) -> None:
    config = EngineConfig(quantize="int8", quantize_activations=asked)
    kernels = kernels_for(config, AMX, SHARE, jnp.bfloat16, eight_bit=True, build=False)
    assert isinstance(kernels.ops, AmxLayerOps)
    assert (kernels.ops.integer_products, kernels.config.quantize_activations) == (integer, integer)
    assert ("by amx-int8" in str(kernels), "widened to the network" in str(kernels)) == (integer, not integer)
    assert kernels.ops.left_to_xla(SHARE, in_int8_shapes("coarse" if integer else "fine")) == {}


@pytest.mark.parametrize("odd", [{"mlp_size": 1568}, {"mlp_bias": True}])
def test_amx_says_so_where_it_widens_int8_weights_of_other_shapes(odd: dict[str, Any]) -> None:
    kernels = kernels_for(
        EngineConfig(quantize="int8"), AMX, replace(SHARE, **odd), jnp.bfloat16, eight_bit=True, build=False
    )
    assert (kernels.config.attention, kernels.config.quantize_activations) == ("amx", False)
    assert "widened to the network" in str(kernels)


def in_int8_shapes(scales: Int8Scales) -> Layers:
    layers = Layout(SHARE).abstract_weights(jnp.bfloat16).layers
    return jax.eval_shape(lambda layers: layers_in_int8(layers, scales), layers)


@pytest.mark.parametrize("quantize", ["gguf", "fp8"])
def test_other_quantized_weights_are_widened_for_tiles(quantize: Any) -> None:
    decided = for_device(EngineConfig(quantize=quantize), replace(AMX, no_cpu=None), False, head_dim=64)
    assert decided.attention == "amx"
    assert not decided.quantize_activations


def test_a_files_blocks_times_quantized_activations_are_the_general_kernels_work() -> None:
    asked = EngineConfig(quantize="gguf", quantize_activations=True)
    assert for_device(asked, replace(AMX, no_cpu=None), False, head_dim=64).attention == "cpu"
    with pytest.raises(ConfigError, match="the general kernels"):
        for_device(replace(asked, attention="amx"), replace(AMX, no_cpu=None), False, head_dim=64)


def test_the_report_says_how_int8_weights_are_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = Layout(SHARE).abstract_weights(jnp.float32).layers
    for dot, words in ((VNNI, f"activations of 8 bits, by {VNNI.name}"), (SLOW, "widened to float32")):
        rows = int8_kernels(monkeypatch, dot, EngineConfig()).report(SHARE, shapes)
        told = {row["name"]: row["int8_products"] for row in rows}
        assert words in told["cpu"]
        assert told["xla"] is None


@pytest.mark.parametrize("kind", ["half", "short"])
@pytest.mark.parametrize(
    ("large_keys", "integers", "taken"),
    [({}, True, True), ({}, False, False), ({"qkv_bias": True}, True, False), ({"qk_norm": True}, True, False)],
)
def test_attention_is_in_16_bits_beside_integers_where_keys_are_small(
    monkeypatch: pytest.MonkeyPatch, large_keys: dict[str, bool], integers: bool, taken: bool, kind: str
) -> None:
    monkeypatch.setattr(backends, "narrow_attention", lambda: kind)
    shard = replace(SHARE, **large_keys)  # type: ignore[arg-type]
    target = KernelTarget(CPU, shard, eight_bit=True, quantize="int8", integer_products=integers)
    assert target.narrow_attention == (kind if taken else None)
    monkeypatch.setattr(backends, "narrow_attention", lambda: None)
    assert target.narrow_attention is None


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ({"asimd", "asimddp", "bf16", "i8mm"}, "activations rounded to bf16, by neon-bf16"),
        ({"asimd", "asimddp"}, "widened to float32"),
        ({"avx512f", "avx512_bf16"}, "widened to float32"),
    ],
)
def test_the_report_says_how_bf16_weights_are_multiplied(
    features: set[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels_module, "bf16_products", lambda: bf16_products(features))
    shapes = Layout(SHARE).abstract_weights(jnp.bfloat16).layers
    rows = kernels_for(EngineConfig(), CPU, SHARE, jnp.bfloat16, build=False).report(SHARE, shapes)
    assert {row["name"]: row["bf16_products"] for row in rows if row["bf16_products"]} == {"cpu": words}


@pytest.mark.parametrize(
    ("features", "name"),
    [({"asimd", "asimddp", "i8mm", "bf16"}, "neon-i8mm"), ({"asimd", "asimddp"}, "neon-dotprod"), ({"asimd"}, "plain")],
)
def test_the_newest_instructions_multiply_int8_weights_on_arm64(features: set[str], name: str) -> None:
    assert int8_dot(features).name == name


@pytest.mark.parametrize("given", [{}, {"quantize": "int8", "attention": "xla"}])
def test_activations_of_other_weights_or_kernels_cannot_be_quantized(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="needs weights in int8 or in GGUF's blocks and our own code for CPUs"):
        kernels_for(EngineConfig(quantize_activations=True, **given), CPU, SHARE, jnp.float32, build=False)


def report(device: Device, model: str, config: EngineConfig | None = None) -> dict[str, dict[str, Any]]:
    shard, dtype = known_config(model), jnp.bfloat16
    kernels = kernels_for(config or EngineConfig(), device, shard, dtype, build=False)
    return {row["name"]: row for row in kernels.report(shard, Layout(shard).abstract_weights(dtype).layers)}


def test_every_backend_is_reported_with_why_it_is_not_used() -> None:
    rows = report(CPU, "smollm2-135m")
    assert list(rows) == list(KERNELS)
    assert {name: row["state"] for name, row in rows.items()} == {
        "xla": "available", "cpu": "used", "amx": "unavailable", "hopper": "unavailable", "pallas-tpu": "unavailable",
    }  # fmt: skip
    assert rows["amx"]["problem"] == "needs a CPU with amx_bf16"
    assert "Hopper" in rows["hopper"]["problem"]
    assert rows["cpu"]["problem"] is None
    assert rows["cpu"]["left_to_xla"] == {}


def test_operations_that_a_kernel_leaves_to_xla_are_reported_with_the_reason() -> None:
    """Heads of 64 are not the Hopper kernel's; those of 128 are."""
    hopper = Device("gpu", 1 << 36, hopper=True, multiprocessors=132)
    left = report(hopper, "smollm2-135m")["hopper"]["left_to_xla"]
    assert "64" in left["qkv"]
    assert report(hopper, "qwen3-0.6b")["hopper"]["left_to_xla"] == {}


def test_the_cpu_kernels_leave_weights_in_other_eight_bits_to_xla() -> None:
    shard = known_config("smollm2-135m")
    kernels = kernels_for(EngineConfig(), CPU, shard, jnp.bfloat16, eight_bit=True, build=False)
    assert set(kernels.ops.left_to_xla(shard, Layout(shard).abstract_weights(jnp.bfloat16).layers)) == set(OPERATIONS)
