"""Metrics equal trec_eval's own (pytrec_eval runs its C code) on drawn judgments and runs, and cases done by hand."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.errors import RequestError
from onepass.evaluate.metrics import Metric
from onepass.evaluate.trec_files import ranked

# Ours, and the name of the same in trec_eval.
SAME = {
    "ndcg": "ndcg",
    "ndcg@1": "ndcg_cut_1",
    "ndcg@3": "ndcg_cut_3",
    "ndcg@10": "ndcg_cut_10",
    "map": "map",
    "map@3": "map_cut_3",
    "mrr": "recip_rank",
    "recall@1": "recall_1",
    "recall@10": "recall_10",
    "precision@3": "P_3",
}
MEASURES = {"ndcg", "ndcg_cut.1,3,10", "map", "map_cut.3", "recip_rank", "recall.1,10", "P.3"}
DOCUMENTS = [f"d{number}" for number in range(14)]
GRADES = st.dictionaries(st.sampled_from(DOCUMENTS), st.integers(0, 3), min_size=1)
# Few different scores, so that there are ties; some differ only beyond single precision.
SCORES = st.dictionaries(
    st.sampled_from(DOCUMENTS), st.sampled_from([0.0, 0.5, 1.0, 1.0 + 1e-12, 2.0, -3.25]), min_size=1
)


@given(grades=GRADES, scores=SCORES)
@settings(max_examples=300, deadline=None)
def test_every_metric_equals_trec_eval(trec_eval: Any, grades: dict[str, int], scores: dict[str, float]) -> None:
    theirs = trec_eval.RelevanceEvaluator({"q": grades}, MEASURES).evaluate({"q": scores})["q"]
    ranking = [document.id for document in ranked(scores)]
    for ours, name in SAME.items():
        assert Metric.parse(ours).value(ranking, grades) == pytest.approx(theirs[name], abs=1e-9), ours


def test_ndcg_by_hand() -> None:
    """Gains 0, 3, 1 at places 1, 2, 3; the ideal has 3, 2, 1, and one of them was not retrieved."""
    gained = 3 / math.log2(3) + 1 / 2
    ideal = 3 + 2 / math.log2(3) + 1 / 2
    value = Metric("ndcg", 3).value(["x", "a", "c"], {"a": 3, "b": 2, "c": 1})
    assert value == pytest.approx(gained / ideal, abs=1e-12)


def test_mrr_looks_no_further_than_k() -> None:
    ranking, grades = ["x", "y", "a"], {"a": 1}
    assert Metric("mrr", 2).value(ranking, grades) == 0
    assert Metric("mrr", 3).value(ranking, grades) == pytest.approx(1 / 3)


def test_a_negative_grade_is_not_relevant_and_gains_nothing() -> None:
    assert Metric("ndcg", 2).value(["junk", "a"], {"junk": -2, "a": 1}) == pytest.approx(1 / math.log2(3))
    assert Metric("map").value(["junk", "a"], {"junk": -2, "a": 1}) == 0.5


@pytest.mark.parametrize("name", list(SAME))
def test_nothing_relevant_or_nothing_retrieved_is_0(name: str) -> None:
    assert Metric.parse(name).value(["a"], {"a": 0}) == 0
    assert Metric.parse(name).value([], {"a": 1}) == 0


@pytest.mark.parametrize("text", ["ndcg@0", "ndcg@", "f1", "", "ndcg@10@3", "ndcg@ten"])
def test_an_unknown_metric_is_named(text: str) -> None:
    with pytest.raises(RequestError, match="a metric is ndcg, mrr, map, recall, precision"):
        Metric.parse(text)


def test_metrics_are_written_as_they_are_read() -> None:
    assert [str(Metric.parse(text)) for text in ("nDCG@10", " map ", "recall@100")] == ["ndcg@10", "map", "recall@100"]
