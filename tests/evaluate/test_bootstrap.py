"""Intervals by resampling: seeded, as wide as theory says, and paired."""

import numpy as np
import pytest

from onepass.evaluate.bootstrap import Bootstrap, differences, intervals


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.random.default_rng(1).random((40, 2))
    assert intervals(values, Bootstrap(200, 7)) == intervals(values, Bootstrap(200, 7))
    assert intervals(values, Bootstrap(200, 7)) != intervals(values, Bootstrap(200, 8))


def test_an_interval_is_as_wide_as_the_normal_approximation() -> None:
    values = np.random.default_rng(2).normal(0.5, 0.2, (400, 1))
    (interval,) = intervals(values, Bootstrap(4000))
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert interval.mean == pytest.approx(values.mean())
    assert interval.low == pytest.approx(interval.mean - half, abs=0.1 * half)
    assert interval.high == pytest.approx(interval.mean + half, abs=0.1 * half)
    (narrow,) = intervals(values, Bootstrap(4000, confidence=0.5))
    assert narrow.high - narrow.low == pytest.approx(2 * half * 0.6745 / 1.96, rel=0.1)


def test_differences_are_paired() -> None:
    """Queries differ far more than the systems do: only the paired interval is narrow."""
    baseline = np.random.default_rng(3).random((100, 1))
    (difference,) = differences(baseline + 0.01, baseline, Bootstrap(500))
    assert (difference.wins, difference.losses, difference.ties) == (100, 0, 0)
    assert difference.mean == pytest.approx(0.01)
    assert difference.high - difference.low < 1e-9
    assert (difference.p_value, difference.shown_p_value) == (0, "<0.001")


def test_wins_losses_ties_and_p() -> None:
    baseline = np.zeros((5, 2))
    system = np.array([[0.5, 0], [0.5, 0], [-0.25, 0], [0, 0], [1e-15, 0]])
    first, second = differences(system, baseline, Bootstrap(1000))
    assert (first.wins, first.losses, first.ties) == (2, 1, 2)
    assert 0 < first.p_value < 1
    assert (second.mean, second.p_value, second.ties) == (0, 1, 5)


def test_p_is_small_only_where_the_interval_leaves_0() -> None:
    noise = np.random.default_rng(4).normal(0, 1, (200, 1))
    (same,) = differences(noise - noise.mean(), np.zeros_like(noise), Bootstrap(2000))
    assert same.low < 0 < same.high
    assert same.p_value > 0.5
    (worse,) = differences(noise - noise.mean() - 1, np.zeros_like(noise), Bootstrap(2000))
    assert worse.high < 0
    assert worse.p_value < 0.01
