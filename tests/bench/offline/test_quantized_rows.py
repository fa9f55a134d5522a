"""Rows of quantized weights tell how far every item's scores are from the same model unquantized."""

import numpy as np
import pytest

from onepass.bench.offline.cases import Way
from onepass.bench.offline.measure import Measurement, Timing
from onepass.bench.offline.run import BenchRun, Plan, bench
from onepass.bench.offline.unquantized import over_unquantized
from onepass.bench.workloads import Workload
from onepass.engine.load import quantized
from onepass.loading.model import Model
from onepass.models.weights import Weights
from onepass.scorer import Scorer

SIZES = {"query": 40, "items": 8, "item_tokens": 6}
PLAN = Plan(modes=("serial", "extend"), timing=Timing(1, 1), serial_items=3, overrides=SIZES, quantize="int8")


@pytest.fixture(scope="module")
def ran(loaded: tuple[Model, Weights]) -> BenchRun:
    return bench(loaded, PLAN, lambda row: None)


def scores(model: Model, weights: Weights, ran: BenchRun) -> np.ndarray:
    (asked,) = next(iter(ran.workloads.values())).requests  # type: ignore[union-attr]
    with Scorer(model, weights) as scorer:
        found = scorer.score(
            list(asked.query),
            [list(i) for i in asked.items],
            label_token_ids=list(asked.labels[0]),
            apply_softmax=True,
            mode="extend",
        )
    return np.array(found.scores, np.float64)


def test_a_quantized_row_tells_the_drift_of_all_items(loaded: tuple[Model, Weights], ran: BenchRun) -> None:
    serial, row = ran.rows
    assert (row.dtype, row.drift["items"], row.void) == ("int8", 8, [])
    assert row.form is not None
    assert row.form.startswith("8-bit weights")
    model, weights = loaded
    gaps = np.abs(scores(model, quantized(model, weights, "int8"), ran) - scores(model, weights, ran))
    assert row.drift["max"] == pytest.approx(gaps.max(), abs=1e-5)
    assert row.drift["mean"] == pytest.approx(gaps.mean(), abs=1e-5)
    assert gaps.max() > 1e-4  # more than orders of additions: 8 bits were compared
    assert (serial.drift, serial.form, serial.over_unquantized) == ({}, None, None)  # it is the reference


def test_a_quantized_row_is_timed_by_turns_with_the_same_model_unquantized(
    loaded: tuple[Model, Weights], ran: BenchRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratio = ran.rows[1].over_unquantized
    assert ratio is not None
    assert f"by turns {ratio:.2f} x the same model in float32" in ran.rows[1].notes
    seconds = iter([9, 9, 6, 2, 8, 4, 5, 1])  # two passes that are not timed, then pairs of theirs and ours
    monkeypatch.setattr("onepass.bench.offline.unquantized.measure", lambda *_: Measurement(rounds=[next(seconds)]))
    workload = next(iter(ran.workloads.values()))
    assert isinstance(workload, Workload)
    with Scorer(*loaded) as scorer:
        assert over_unquantized(scorer, Way.named("extend"), loaded, workload, 3) == 3
        failed = Measurement(rounds=[1.0], errors=["no"])
        monkeypatch.setattr("onepass.bench.offline.unquantized.measure", lambda *_: failed)
        assert over_unquantized(scorer, Way.named("extend"), loaded, workload, 3) is None
