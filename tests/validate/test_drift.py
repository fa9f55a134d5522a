"""Drift is told in figures: how far scores move, and whether the order stays."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from onepass.engine.config import EngineConfig
from onepass.engine.load import quantized
from onepass.errors import ConfigError
from onepass.evidence.drift import rank_correlation
from onepass.models.weights import Weights
from onepass.scorer import Scorer
from onepass.validate import drift
from onepass.validate.drift import drift_outcomes, num_drift_outcomes
from onepass.validate.harness import Harness, LikelyLabels
from onepass.validate.isolation import same_length
from onepass.validate.settings import Settings
from onepass.validate.workload import make_workload

SETTINGS = Settings(counts=(8,), query_tokens=40, ways=("packed-segment",), torch="off", quantize="fp8")


def test_ranks_correlate_as_spearman_says() -> None:
    order = np.arange(10.0)[:, None]
    assert rank_correlation(order, order**3) == pytest.approx(1.0)
    assert rank_correlation(order, -order) == pytest.approx(-1.0)
    swapped = order.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    assert rank_correlation(order, swapped) == pytest.approx(1 - 6 * 2 / (10 * 99))
    assert rank_correlation(order[:2], order[:2]) is None


def test_the_drift_of_eight_bits_is_reported_and_weights_that_are_not_the_model_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One check of isolation stands for all of them: programs of this vocabulary take long."""
    monkeypatch.setattr(drift, "isolation_cases", lambda work, settings, _: [same_length(work, 8, "packed-segment")])
    with Scorer.load("random:qwen3-0.6b?layers=2", dtype="bfloat16") as scorer:
        model, weights = scorer.model, scorer.weights
    work = make_workload(model.config.vocab_size, SETTINGS, None)
    config = EngineConfig(keep_programs=False, cache_bytes=1 << 26, max_batch_tokens=120)
    plain = Harness(model, weights, LikelyLabels([1, 2, 3], negligible=True), config)

    def outcomes(narrow_weights: Weights) -> list[str]:
        narrow = plain.with_quantized(narrow_weights, "fp8")
        leaking = replace(narrow, leaking=True, _scorers={})
        found = list(drift_outcomes(work, SETTINGS, plain, narrow, leaking))
        for rig in (narrow, leaking):
            rig.close()
        assert found[0].name == "drift of fp8"
        assert found[0].rank_correlation is not None
        assert len(found) == num_drift_outcomes(work, SETTINGS) == 2, "isolation is asked again"
        return [outcome.status for outcome in found]

    narrow = quantized(model, weights, "fp8")
    assert set(outcomes(narrow)) == {"passed"}
    wrong = replace(narrow.layers, down=jax.numpy.flip(narrow.layers.down, axis=1))
    assert outcomes(replace(narrow, layers=wrong))[0] == "failed"
    plain.close()


def test_float32_is_not_quantized() -> None:
    with (
        pytest.raises(ConfigError, match="needs bfloat16 and a model on one device; got float32 on 1"),
        Scorer.load("random:qwen3-0.6b?layers=1", dtype="float32", quantize="fp8"),
    ):
        pass
