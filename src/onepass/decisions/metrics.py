"""How good probabilities are: log-loss, Brier score, expected calibration error, and the curve behind it.

`probabilities` is a row per example with a number per option, padded with zeros; `truth` is the right option of each.
"""

from dataclasses import dataclass

import numpy as np

BINS = 10


@dataclass(frozen=True)
class CurvePoint:
    """Examples whose likeliest option has a probability in one tenth: what was said, and how often it was right."""

    confidence: float
    accuracy: float
    count: int


@dataclass(frozen=True)
class Metrics:
    ece: float
    brier: float
    log_loss: float
    accuracy: float
    count: int

    def to_dict(self) -> dict[str, float]:
        return dict(vars(self))


def metrics_of(probabilities: np.ndarray, truth: np.ndarray) -> Metrics:
    rows = np.arange(len(truth))
    right = np.zeros_like(probabilities)
    right[rows, truth] = 1.0
    return Metrics(
        ece=expected_calibration_error(probabilities, truth),
        brier=float(((probabilities - right) ** 2).sum(axis=1).mean()),
        log_loss=float(-np.log(np.maximum(probabilities[rows, truth], 1e-12)).mean()),
        accuracy=float((probabilities.argmax(axis=1) == truth).mean()),
        count=len(truth),
    )


def expected_calibration_error(probabilities: np.ndarray, truth: np.ndarray) -> float:
    """The mean distance between confidence and accuracy over the curve's points, by how many examples each has."""
    curve = reliability_curve(probabilities, truth)
    return sum(point.count * abs(point.confidence - point.accuracy) for point in curve) / len(truth)


def reliability_curve(probabilities: np.ndarray, truth: np.ndarray) -> list[CurvePoint]:
    likeliest = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == truth
    bins = np.minimum((likeliest * BINS).astype(int), BINS - 1)
    return [
        CurvePoint(float(likeliest[bins == b].mean()), float(right[bins == b].mean()), int((bins == b).sum()))
        for b in range(BINS)
        if (bins == b).any()
    ]
