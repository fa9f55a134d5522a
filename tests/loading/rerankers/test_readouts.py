"""Read-outs: the number that each makes of logits, before and after its activation, and what is refused."""

import math

import pytest

from onepass.errors import ConfigError, UnsupportedModel
from onepass.loading.rerankers.readouts import (
    ClassHead,
    ExpectedValue,
    LabelProbability,
    LinearHead,
    LogitDifference,
    Readout,
    SingleLogit,
    class_readout,
    readout_from_dict,
    readout_to_dict,
)


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


@pytest.mark.parametrize(
    ("readout", "logits", "raw", "score"),
    [
        (LabelProbability(), [2.0, -1.0], 3.0, sigmoid(3.0)),
        (LabelProbability(), [1.0, 0.0, 0.0], 1.0 - math.log(2), math.e / (math.e + 2)),
        (LogitDifference(), [2.0, -1.0], 3.0, sigmoid(3.0)),
        (LogitDifference("identity"), [2.0, -1.0], 3.0, 3.0),
        (SingleLogit(5.0, "sigmoid"), [10.0], 2.0, sigmoid(2.0)),
        (SingleLogit(), [-7.5], -7.5, -7.5),
        (ExpectedValue((1.0, 2.0, 7.0)), [0.0, 0.0, 0.0], 10 / 3, 10 / 3),
        (LinearHead(), [4.0], 4.0, 4.0),
        (LinearHead(1, "sigmoid"), [4.0, -2.0], -2.0, sigmoid(-2.0)),
        (LinearHead(1, "softmax"), [4.0, 1.0], 1.0, sigmoid(-3.0)),
    ],
    ids=str,
)
def test_what_each_reads(readout: Readout, logits: list[float], raw: float, score: float) -> None:
    assert readout.raw(logits) == pytest.approx(raw)
    assert readout.score(logits) == pytest.approx(score)
    assert readout_from_dict(readout_to_dict(readout)) == readout


def test_large_logits_overflow_nothing_and_keep_their_order() -> None:
    readout = LogitDifference()
    assert readout.score([1000.0, -1000.0]) == 1.0
    assert readout.score([-1000.0, 1000.0]) == 0.0
    assert readout.raw([900.0, 0.0]) > readout.raw([800.0, 0.0])
    assert LabelProbability().score([1000.0, 1000.0]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("readout", "labels"),
    [(LabelProbability(), 1), (LogitDifference(), 3), (SingleLogit(), 2), (ExpectedValue((1.0, 2.0)), 3)],
)
def test_the_number_of_labels_is_checked(readout: Readout, labels: int) -> None:
    assert readout.check(labels) is not None
    assert LabelProbability().check(2) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kind": "votes"}, "readout must be one of label_probability"),
        ({"kind": "single_logit", "values": [1]}, "takes activation, scale; got values"),
        ({"kind": "single_logit", "scale": 0}, "scale must be a number other than 0"),
        ({"kind": "single_logit", "scale": float("nan")}, "scale must be a number"),
        ({"kind": "logit_difference", "activation": "tanh"}, "must be one of identity, sigmoid; got 'tanh'"),
        ({"kind": "logit_difference", "activation": "softmax"}, "must be one of identity, sigmoid"),
        ({"kind": "expected_value", "values": ["a"]}, "values must be a list of numbers"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        readout_from_dict(given)


def test_a_head_ranks_by_its_only_class_or_by_the_one_that_means_yes() -> None:
    assert class_readout(ClassHead.of(["LABEL_0"], None), "sigmoid") == LinearHead(0, "sigmoid")
    assert class_readout(ClassHead.of(["no", "Yes"], None), "sigmoid") == LinearHead(1, "softmax")
    with pytest.raises(UnsupportedModel, match=r"needs one that is called .*yes; the head has LABEL_0, LABEL_1"):
        class_readout(ClassHead.of(["LABEL_0", "LABEL_1"], None), "sigmoid")
