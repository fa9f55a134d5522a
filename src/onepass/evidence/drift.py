"""How far quantised scores are from unquantised ones: largest and mean difference, and whether items keep their order.

`validate` judges a model's drift by it, `bench` sets drift beside speed. What passes is `tolerance`.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Drift:
    """Of probabilities, [items, columns], from those of the same model unquantised."""

    most: float
    mean: float
    rank_correlation: float | None
    items: int

    @classmethod
    def between(cls, right: np.ndarray, found: np.ndarray) -> "Drift":
        apart = np.abs(found - right)
        return cls(float(apart.max()), float(apart.mean()), rank_correlation(right, found), len(right))

    def to_dict(self) -> dict[str, float | None]:
        return {"max": self.most, "mean": self.mean, "rank_correlation": self.rank_correlation, "items": self.items}


def among_labels(probabilities: np.ndarray) -> np.ndarray:
    """[items, labels] in the whole vocabulary as they are among the labels alone: small ones drift by as much."""
    result: np.ndarray = probabilities / np.maximum(probabilities.sum(axis=1, keepdims=True), 1e-300)
    return result


def rank_correlation(right: np.ndarray, found: np.ndarray) -> float | None:
    """Spearman's, of the items' order by each column, on average; None of fewer than three items."""
    if len(right) < 3:
        return None
    ranks = [np.argsort(np.argsort(a, axis=0), axis=0).astype(float) for a in (right, found)]
    centred = [a - a.mean(axis=0) for a in ranks]
    return float(np.mean((centred[0] * centred[1]).sum(axis=0) / (centred[0] ** 2).sum(axis=0)))
