"""Logits into probabilities on the host: softmax, temperature, label mass, names."""

import numpy as np
import pytest

from onepass.api import ScoreRequest, ScoreResult, Timings, Usage
from onepass.engine.encoding.encode import Encoder
from onepass.engine.readout import ReadOut, RunInfo, result_of

INFO = RunInfo("m", "extend", "because", Usage(3), Timings())


def result(logits: list[list[float]], totals: list[float], **fields: object) -> ScoreResult:
    """Of items whose labels have these logits, and one log-sum-exp each."""
    request = ScoreRequest(**{"query": [1], "items": [[2]] * len(logits), **fields})  # type: ignore[arg-type]
    encoded = Encoder(None, 100, 64).encode(request)
    flat = np.concatenate([np.array(row, np.float32) for row in logits])
    each = np.repeat(np.array(totals, np.float32), list(map(len, logits)))
    return result_of(encoded, ReadOut(flat, each), INFO, None)


def test_without_softmax_scores_are_probabilities_in_the_vocabulary() -> None:
    told = result([[1.0, 2.0]], [3.0], label_token_ids=[5, 6])
    assert told.scores[0] == pytest.approx([np.exp(-2), np.exp(-1)])
    assert told.logprobs == [pytest.approx([-2, -1])]
    assert told.logits == [[1.0, 2.0]]
    assert told.label_mass == [pytest.approx(np.exp(-2) + np.exp(-1))]


def test_with_softmax_scores_are_shares_of_the_labels() -> None:
    told = result([[1.0, 2.0]], [3.0], label_token_ids=[5, 6], apply_softmax=True)
    assert told.scores[0] == pytest.approx([1 / (1 + np.e), np.e / (1 + np.e)])
    assert told.label_mass == [pytest.approx(np.exp(-2) + np.exp(-1))]


def test_items_may_differ_in_how_many_labels_they_have() -> None:
    told = result([[1.0, 2.0], [5.0]], [3.0, 6.0], label_token_ids=[[5, 6], [7]], apply_softmax=True)
    assert told.scores == [pytest.approx([1 / (1 + np.e), np.e / (1 + np.e)]), [1.0]]
    assert told.label_mass == [pytest.approx(np.exp(-2) + np.exp(-1)), pytest.approx(np.exp(-1))]
    assert (told.label_token_ids, told.labels) == ([[5, 6], [7]], [["<5>", "<6>"], ["<7>"]])


@pytest.mark.parametrize("temperature", [1e-300, 1e-9, 1e9, 1e300])
def test_extreme_temperatures_give_probabilities_still(temperature: float) -> None:
    told = result([[1.0, 2.0, -300.0]], [3.0], label_token_ids=[5, 6, 7], apply_softmax=True, temperature=temperature)
    assert np.isfinite(told.scores).all()
    assert sum(told.scores[0]) == pytest.approx(1)
    assert told.scores[0] == pytest.approx([0, 1, 0] if temperature < 1 else [1 / 3] * 3, abs=1e-6)


def test_equal_logits_share_equally_at_any_temperature() -> None:
    told = result([[2.0, 2.0]], [3.0], label_token_ids=[5, 6], apply_softmax=True, temperature=1e-300)
    assert told.scores == [[0.5, 0.5]]


def test_a_result_prints_and_becomes_json() -> None:
    told = result([[1.0, 2.0]], [3.0], label_token_ids=[5, 6], items=[[2, 3, 4]])
    assert "<3 tokens>" in str(told)
    assert "1 item · m · mode extend" in str(told)
    as_dict = told.to_dict()
    assert as_dict["scores"] == told.scores
    assert as_dict["usage"]["prompt_tokens"] == 3
    assert (as_dict["mode"], as_dict["reason"], as_dict["model"]) == ("extend", "because", "m")


def test_items_given_as_an_array_are_named_like_lists() -> None:
    assert "<2 tokens>" in str(result([[1.0]], [3.0], label_token_ids=[5], items=np.array([[2, 3]])))
