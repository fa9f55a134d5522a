"""Fitting: a known temperature and bias are found again, and a fit is judged on what it did not see."""

import numpy as np
import pytest

from onepass.decisions.calibration import IDENTITY, TypeCalibration
from onepass.decisions.fit import Example, fit, fit_with_folds
from onepass.decisions.metrics import expected_calibration_error, metrics_of, reliability_curve


def drawn(count: int, options: int, temperature: float, bias: tuple[float, ...], seed: int = 1) -> list[Example]:
    """Logits of a model that is too sure and prefers positions, with answers drawn by the true probabilities."""
    random = np.random.default_rng(seed)
    examples = []
    for _ in range(count):
        true = random.normal(0, 1.5, options)
        p = np.exp(true) / np.exp(true).sum()
        logits = temperature * true + np.resize(bias, options)
        examples.append(Example(tuple(logits.tolist()), int(random.choice(options, p=p))))
    return examples


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5, 4.0])
def test_a_known_temperature_is_recovered(temperature: float) -> None:
    found = fit(drawn(8000, 4, temperature, (0.0,)))
    assert found.temperature == pytest.approx(temperature, rel=0.05)
    assert max(map(abs, found.bias)) < 0.1 * temperature


def test_a_known_bias_is_recovered() -> None:
    bias = (1.5, 0.5, 0.0, -2.0)
    found = fit(drawn(8000, 4, 2.0, bias))
    assert found.temperature == pytest.approx(2.0, rel=0.05)
    assert found.bias == pytest.approx(tuple(np.array(bias) - np.mean(bias)), abs=0.15)


def test_folds_lower_the_error_of_a_model_that_is_too_sure() -> None:
    result = fit_with_folds(drawn(1500, 3, 3.0, (1.0, 0.0, -1.0)))
    assert result.after.ece < result.before.ece / 2
    assert result.after.log_loss < result.before.log_loss
    assert result.after.brier < result.before.brier
    assert result.probabilities_after.sum(axis=1) == pytest.approx(np.ones(1500))


def test_a_calibrated_model_is_left_as_it_is() -> None:
    found = fit(drawn(8000, 3, 1.0, (0.0,)))
    assert found.temperature == pytest.approx(IDENTITY.temperature, rel=0.05)


def test_examples_may_have_different_numbers_of_options() -> None:
    examples = drawn(2000, 2, 2.0, (0.0,), seed=2) + drawn(2000, 5, 2.0, (0.0,), seed=3)
    assert fit(examples).temperature == pytest.approx(2.0, rel=0.07)


def test_every_answer_right_and_sure_does_not_run_away() -> None:
    found = fit([Example((3.0, 0.0), 0), Example((0.0, 3.0), 1)] * 50)
    assert 0 < found.temperature < 3


def test_metrics_of_known_rows() -> None:
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]])
    truth = np.array([0, 1, 0, 1])
    found = metrics_of(probabilities, truth)
    assert found.accuracy == 0.75
    assert found.brier == pytest.approx((0.02 + 1.28 + 0.32 + 0.18) / 4)
    assert found.log_loss == pytest.approx(-np.log([0.9, 0.2, 0.6, 0.7]).mean())
    assert found.ece == pytest.approx((0.1 + 0.8 + 0.4 + 0.3) / 4)


def test_perfect_calibration_has_no_error() -> None:
    probabilities = np.array([[0.75, 0.25]] * 4)
    truth = np.array([0, 0, 0, 1])
    assert expected_calibration_error(probabilities, truth) == pytest.approx(0)
    assert [(point.count, point.accuracy) for point in reliability_curve(probabilities, truth)] == [(4, 0.75)]


def test_a_calibration_takes_positions_it_has_no_bias_for() -> None:
    p = TypeCalibration(2.0, (1.0,)).apply(np.array([1.0, 0.0, 0.0]))
    assert p == pytest.approx([1 / 3] * 3)
