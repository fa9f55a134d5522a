"""How one number is read from the logits at a prompt's last token: the read-outs of rerankers, judges and classifiers.

    LabelProbability   P(first label) among the labels                      Qwen3-Reranker, guards, judges
    LogitDifference    logit(first) - logit(second), then an activation     mxbai-rerank, sentence-transformers
    SingleLogit        one logit divided by a scale, then an activation     zerank, ctxl-rerank
    ExpectedValue      the mean of the labels' values, by probability       rating models
    LinearHead         one output of a classification head                  reward models, *ForSequenceClassification

`raw` is the number before the activation. Which labels' logits there are is a template's business (`templates`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, Protocol

from onepass.errors import ConfigError, UnsupportedModel

Activation = Literal["identity", "sigmoid", "softmax"]
POSITIVE_CLASSES = frozenset(("yes", "relevant", "true", "positive"))
ACTIVATIONS: tuple[Activation, ...] = ("identity", "sigmoid", "softmax")


class Readout(Protocol):
    kind: ClassVar[str]

    def raw(self, logits: Sequence[float]) -> float:
        """The number that documents are sorted by."""
        ...

    def score(self, logits: Sequence[float]) -> float:
        """The number as the model's users know it."""
        ...

    def check(self, num_labels: int) -> str | None:
        """What is wrong with so many labels, or None."""
        ...


@dataclass(frozen=True)
class LabelProbability:
    """The first label's probability among all labels; raw, its log-odds against the others."""

    kind: ClassVar[str] = "label_probability"

    def raw(self, logits: Sequence[float]) -> float:
        return logits[0] - log_sum_exp(logits[1:])

    def score(self, logits: Sequence[float]) -> float:
        return softmax(logits)[0]

    def check(self, num_labels: int) -> str | None:
        return None if num_labels >= 2 else "two labels or more"


@dataclass(frozen=True)
class LogitDifference:
    kind: ClassVar[str] = "logit_difference"
    activation: Activation = "sigmoid"

    def raw(self, logits: Sequence[float]) -> float:
        return logits[0] - logits[1]

    def score(self, logits: Sequence[float]) -> float:
        return activated(self.activation, self.raw(logits))

    def check(self, num_labels: int) -> str | None:
        return None if num_labels == 2 else "two labels"


@dataclass(frozen=True)
class SingleLogit:
    kind: ClassVar[str] = "single_logit"
    scale: float = 1.0  # the logit is divided by it
    activation: Activation = "identity"

    def raw(self, logits: Sequence[float]) -> float:
        return logits[0] / self.scale

    def score(self, logits: Sequence[float]) -> float:
        return activated(self.activation, self.raw(logits))

    def check(self, num_labels: int) -> str | None:
        return None if num_labels == 1 else "one label"


@dataclass(frozen=True)
class ExpectedValue:
    """`values` are what the labels stand for, such as 1 to 7."""

    kind: ClassVar[str] = "expected_value"
    values: tuple[float, ...] = ()

    def raw(self, logits: Sequence[float]) -> float:
        return sum(p * value for p, value in zip(softmax(logits), self.values, strict=True))

    def score(self, logits: Sequence[float]) -> float:
        return self.raw(logits)

    def check(self, num_labels: int) -> str | None:
        return None if num_labels == len(self.values) >= 2 else f"a value for each of {num_labels} labels"


@dataclass(frozen=True)
class LinearHead:
    """Output `index` of a classification head; with softmax, against the others."""

    kind: ClassVar[str] = "linear_head"
    index: int = 0
    activation: Activation = "identity"

    def raw(self, logits: Sequence[float]) -> float:
        return logits[self.index]

    def score(self, logits: Sequence[float]) -> float:
        if self.activation == "softmax":
            return softmax(logits)[self.index]
        return activated(self.activation, self.raw(logits))

    def check(self, num_labels: int) -> str | None:
        return None if self.index < num_labels else f"an output below {num_labels}"


READOUTS: Mapping[str, Callable[..., Readout]] = {
    readout.kind: readout for readout in (LabelProbability, LogitDifference, SingleLogit, ExpectedValue, LinearHead)
}


@dataclass(frozen=True)
class ClassHead:
    """A model with a classification head: the names of its classes, and what makes scores of their logits: softmax
    (one class of several), sigmoid (each class by itself) or identity (a reward, a regression)."""

    labels: tuple[str, ...]
    activation: Activation
    problem_type: str | None = None  # as config.json has it

    @property
    def probability_activation(self) -> Activation:
        """What vLLM, TEI and transformers' pipelines make probabilities with: a single class that is no regression
        gets a sigmoid there."""
        single = len(self.labels) == 1 and self.problem_type != "regression"
        return "sigmoid" if single else self.activation

    @classmethod
    def of(cls, labels: Sequence[str], problem_type: str | None) -> "ClassHead":
        """As transformers' pipelines read `problem_type`; where it is not given, the number of classes decides."""
        kinds: dict[str | None, Activation] = {
            "regression": "identity",
            "single_label_classification": "softmax",
            "multi_label_classification": "sigmoid",
            None: "identity" if len(labels) == 1 else "softmax",
        }
        if problem_type not in kinds:
            wanted = ", ".join(str(kind) for kind in kinds if kind)
            raise ConfigError(f"problem_type must be one of {wanted}; got {problem_type!r}")
        return cls(tuple(labels), kinds[problem_type], problem_type)


def class_readout(head: ClassHead, activation: Activation) -> LinearHead:
    """The number to rank by: the only class, or the one of several whose name means yes."""
    if len(head.labels) == 1:
        return LinearHead(0, activation)
    positive = [n for n, name in enumerate(head.labels) if name.lower() in POSITIVE_CLASSES]
    if len(positive) != 1:
        names = ", ".join(head.labels[:8])
        wanted = ", ".join(sorted(POSITIVE_CLASSES))
        raise UnsupportedModel(f"ranking by classes needs one that is called {wanted}; the head has {names}")
    return LinearHead(positive[0], "softmax")


def readout_to_dict(readout: Readout) -> dict[str, Any]:
    return {"kind": readout.kind, **asdict(readout)}  # type: ignore[call-overload]


def readout_from_dict(given: Mapping[str, Any]) -> Readout:
    """Raises ConfigError for a kind or a field that is not known, and for values of the wrong type."""
    given = dict(given)
    kind = given.pop("kind", None)
    if kind not in READOUTS:
        raise ConfigError(f"readout must be one of {', '.join(READOUTS)}; got {kind!r}")
    make = READOUTS[kind]
    known = {field.name for field in fields(make)}  # type: ignore[arg-type]
    if unknown := given.keys() - known:
        raise ConfigError(f"readout {kind} takes {', '.join(sorted(known)) or 'nothing'}; got {', '.join(unknown)}")
    activation, scale, values = given.get("activation", "identity"), given.get("scale", 1.0), given.get("values", ())
    if activation not in ACTIVATIONS or (activation == "softmax" and kind != LinearHead.kind):
        raise ConfigError(f"activation of {kind} must be one of {', '.join(ACTIVATIONS[:2])}; got {activation!r}")
    if not _is_number(scale) or scale == 0:
        raise ConfigError(f"scale must be a number other than 0; got {scale!r}")
    if not isinstance(values, list | tuple) or not all(map(_is_number, values)):
        raise ConfigError(f"values must be a list of numbers; got {values!r}")
    if "values" in given:
        given["values"] = tuple(map(float, values))
    return make(**given)


def activated(activation: Activation, value: float) -> float:
    if activation == "identity":
        return value
    assert activation == "sigmoid", "softmax is over several logits"
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))


def class_probabilities(activation: Activation, logits: Sequence[float]) -> list[float]:
    """Of all classes of a head: together with softmax, else each by itself."""
    if activation == "softmax":
        return softmax(logits)
    return [activated(activation, logit) for logit in logits]


def softmax(logits: Sequence[float]) -> list[float]:
    total = log_sum_exp(logits)
    return [math.exp(logit - total) for logit in logits]


def log_sum_exp(values: Sequence[float]) -> float:
    highest = max(values)
    return highest + math.log(sum(math.exp(value - highest) for value in values))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
