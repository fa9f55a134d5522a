"""Confidence intervals by resampling queries: of a system's mean, and of the difference between two systems (paired).

Queries are drawn with replacement by a seeded generator; the same seed draws the same queries for every metric and
every system, so that differences are of the same queries.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

SMALLEST_SHOWN = 0.001  # of p values
NO_DIFFERENCE = 1e-12  # between two values of one query: rounding


@dataclass(frozen=True)
class Bootstrap:
    """How many resamples, from which seed, and which share of them an interval holds."""

    samples: int = 1000
    seed: int = 0
    confidence: float = 0.95

    def resampled_means(self, values: np.ndarray) -> np.ndarray:
        """`values` is [queries, metrics]; the result is [samples, metrics]."""
        generator, count = np.random.default_rng(self.seed), len(values)
        return np.stack([values[generator.integers(count, size=count)].mean(axis=0) for _ in range(self.samples)])

    def bounds(self, means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        outside = (1 - self.confidence) / 2
        low, high = np.quantile(means, [outside, 1 - outside], axis=0)
        return low, high


@dataclass(frozen=True)
class Interval:
    mean: float
    low: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Difference:
    """A system's mean less another's. `p_value` is two-sided: twice the share of resamples on the smaller side of 0.
    Wins and losses are queries."""

    mean: float
    low: float
    high: float
    p_value: float
    wins: int
    losses: int
    ties: int

    @property
    def shown_p_value(self) -> str:
        return f"{self.p_value:.3f}" if self.p_value >= SMALLEST_SHOWN else f"<{SMALLEST_SHOWN}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def intervals(values: np.ndarray, bootstrap: Bootstrap) -> list[Interval]:
    """One per metric (column); a row is a query."""
    low, high = bootstrap.bounds(bootstrap.resampled_means(values))
    return [Interval(*map(float, bounds)) for bounds in zip(values.mean(axis=0), low, high, strict=True)]


def differences(values: np.ndarray, baseline: np.ndarray, bootstrap: Bootstrap) -> list[Difference]:
    """Of two systems over the same queries in the same order, one per metric."""
    gains = values - baseline
    gains[np.abs(gains) <= NO_DIFFERENCE] = 0.0
    means = bootstrap.resampled_means(gains)
    low, high = bootstrap.bounds(means)
    smaller = np.minimum((means <= 0).mean(axis=0), (means >= 0).mean(axis=0))
    return [
        Difference(
            mean=float(gains[:, n].mean()),
            low=float(low[n]),
            high=float(high[n]),
            p_value=float(min(1.0, 2 * smaller[n])),
            wins=int((gains[:, n] > 0).sum()),
            losses=int((gains[:, n] < 0).sum()),
            ties=int((gains[:, n] == 0).sum()),
        )
        for n in range(gains.shape[1])
    ]


def as_matrix(rows: Sequence[Sequence[float]]) -> np.ndarray:
    return np.array(rows, dtype=np.float64)
