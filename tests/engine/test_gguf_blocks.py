"""A quantised GGUF file stays in its own blocks on a CPU, unless something is against it, and says so."""

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onepass import ConfigError, Scorer
from onepass.engine import load
from onepass.engine.config import EngineConfig
from onepass.engine.load import chosen_quantization, gguf_problem, quantized
from onepass.kernels.cpu import build
from onepass.loading.model import open_model
from onepass.models.known import known_config

needs_compiler = pytest.mark.skipif(build.cpu_problem() is not None, reason=str(build.cpu_problem()))
QUERY = "Review: The food was delicious. Sentiment: positive. Review:"
ITEMS = [" It was a complete waste of time. Sentiment:", " I loved every minute of it. Sentiment:", " Fine. Sentiment:"]
SIZES = known_config("smollm2-135m")
QUANTISED: Any = SimpleNamespace(name="file", quantised_tensors=("Q4_K", "Q6_K"), config=SIZES)
ODD: Any = SimpleNamespace(name="file", quantised_tensors=("Q8_0",), config=replace(SIZES, mlp_bias=True))
PLAIN: Any = SimpleNamespace(name="folder", quantised_tensors=(), config=SIZES)


@needs_compiler
def test_blocks_of_a_real_file_score_as_the_widened_file(smollm2_gguf: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In AMX's tiles where the CPU has them."""
    scores, sizes, chosen = [], [], []
    with caplog.at_level(logging.INFO, "onepass"):
        for how in (None, "none"):
            with Scorer.load(str(smollm2_gguf), dtype="float32", quantize=how) as scorer:  # type: ignore[arg-type]
                result = scorer.score(QUERY, ITEMS, [" positive", " negative"])
                scores.append(np.asarray(result.scores))
                sizes.append(sum(array.nbytes for array in jax.tree.leaves(scorer.weights)))
                chosen.append(scorer.kernels.config.quantize)
    assert chosen == ["gguf", None]
    assert "weights in the file's blocks (Q4_1, Q8_0)" in caplog.text
    np.testing.assert_allclose(scores[0], scores[1], atol=2e-5)
    assert sizes[0] < 1.1 * smollm2_gguf.stat().st_size < sizes[1] / 4


@needs_compiler
def test_weights_quantized_for_a_comparison_are_those_that_a_scorer_loads(smollm2_gguf: Path) -> None:
    """`bench` and `validate` load weights in float32 and quantize these: they must not measure other ones."""
    model = open_model(str(smollm2_gguf))
    with Scorer.load(str(smollm2_gguf), dtype="float32", quantize="int8") as scorer:
        compared = quantized(model, model.load(jnp.dtype(jnp.float32)), "int8")
        offsets = compared.layers.down_offset is not None
        assert offsets == (compared.layers.down_scale.shape[-1] == 1536 // 32), "the file's blocks have offsets"
        for one, other in zip(jax.tree.leaves(compared), jax.tree.leaves(scorer.weights), strict=True):
            np.testing.assert_array_equal(one, other)


@needs_compiler
def test_auto_keeps_blocks_only_where_nothing_is_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "amx_problem", lambda: "no AMX here")
    monkeypatch.setattr(load, "load_cpu", lambda weights: None)
    auto = EngineConfig()
    assert chosen_quantization(auto, QUANTISED, jnp.float32, 1) == "gguf"
    assert chosen_quantization(auto, PLAIN, jnp.float32, 1) is None
    assert chosen_quantization(auto, QUANTISED, jnp.bfloat16, 1) is None
    assert chosen_quantization(auto, QUANTISED, jnp.float32, 2) is None
    assert chosen_quantization(EngineConfig(attention="xla"), QUANTISED, jnp.float32, 1) is None
    assert chosen_quantization(EngineConfig(quantize="none"), QUANTISED, jnp.float32, 1) is None
    assert chosen_quantization(EngineConfig(quantize="int8"), QUANTISED, jnp.float32, 1) == "int8"
    monkeypatch.setattr(load, "amx_problem", lambda: None)
    monkeypatch.setattr(load, "load_amx", lambda weights: None)
    for dtype in (jnp.float32, jnp.bfloat16):
        assert chosen_quantization(auto, QUANTISED, dtype, 1) == "gguf"
        assert chosen_quantization(auto, ODD, dtype, 1) is None
    general = EngineConfig(attention="cpu")
    assert chosen_quantization(general, ODD, jnp.float32, 1) == "gguf"
    assert chosen_quantization(general, QUANTISED, jnp.bfloat16, 1) is None


def test_blocks_that_are_asked_for_and_cannot_be_kept_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "amx_problem", lambda: "no AMX here")
    with pytest.raises(ConfigError, match="quantize='gguf' cannot be used here: the model is not a quantised GGUF"):
        chosen_quantization(EngineConfig(quantize="gguf"), PLAIN, jnp.float32, 1)
    with pytest.raises(ConfigError, match="needs float32; got bfloat16"):
        chosen_quantization(EngineConfig(quantize="gguf"), QUANTISED, jnp.bfloat16, 1)
    monkeypatch.setattr(load, "amx_problem", lambda: None)
    with pytest.raises(ConfigError, match="sizes in thirty-twos"):
        chosen_quantization(EngineConfig(quantize="gguf"), ODD, jnp.float32, 1)
    with pytest.raises(ConfigError, match="needs float32; got bfloat16"):
        chosen_quantization(EngineConfig(quantize="gguf", quantize_activations=True), QUANTISED, jnp.bfloat16, 1)


def test_what_cannot_be_built_is_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(weights: str) -> None:
        raise build.NotBuilt("the disk is full")

    monkeypatch.setattr(load, "cpu_problem", lambda: None)
    monkeypatch.setattr(load, "amx_problem", lambda: "no AMX here")
    monkeypatch.setattr(load, "load_cpu", fail)
    assert chosen_quantization(EngineConfig(), QUANTISED, jnp.float32, 1) is None
    assert gguf_problem(EngineConfig(), QUANTISED, jnp.float32, 1) == "the disk is full"
