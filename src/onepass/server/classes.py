"""The classes of the served model: of its classification head, of its reranking labels, or of the request's labels.

a classification head              its classes, by its own activation
a reranker that is read by labels  the labels of its template
any other language model           the labels that a request gives; without any, the request is refused
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from onepass.errors import RequestError, UnsupportedModel
from onepass.loading.rerankers.readouts import (
    Activation,
    LabelProbability,
    LinearHead,
    Readout,
    class_probabilities,
    class_readout,
)
from onepass.server.engines.service import Served


@dataclass(frozen=True)
class ServedClasses:
    """`fields` are the label fields of a `ScoreRequest`; `readout` makes a single number of all logits, and is missing
    where no class stands for more."""

    names: tuple[str, ...]
    activation: Activation
    readout: Readout | None
    fields: dict[str, Any] = field(default_factory=dict)

    def probabilities(self, logits: Sequence[float]) -> list[float]:
        if len(self.names) == 1 and self.readout is not None and not isinstance(self.readout, LinearHead):
            return [self.readout.score(logits)]
        return class_probabilities(self.activation, logits)

    def reward(self, logits: Sequence[float]) -> float:
        if self.readout is None:
            names = ", ".join(self.names[:8])
            message = f"a reward needs a single class, or one that is called yes or positive; this model has {names}"
            raise RequestError("not_a_reward_model", message, "model")
        return self.readout.raw(logits)


def classes_of(served: Served, labels: Sequence[str] | None) -> ServedClasses:
    head = served.class_head
    if head is not None:
        if labels is not None:
            own = ", ".join(head.labels[:8])
            raise RequestError("conflicting_labels", f"{served.model} has classes of its own: {own}", "labels")
        try:
            readout: Readout | None = class_readout(head, "identity")
        except UnsupportedModel:
            readout = None
        return ServedClasses(head.labels, head.probability_activation, readout)
    if labels is not None:
        return ServedClasses(
            tuple(labels), "softmax", LabelProbability() if len(labels) > 1 else None, {"labels": labels}
        )
    ranker = served.ranker
    if ranker.method != "label" or ranker.problem:
        message = (
            f"{served.model} has no classification head and no reranking labels; give labels (in /get_reward they have "
            "no effect), or ask /v1/score or /v1/decisions"
        )
        raise RequestError("no_classes", message, "labels")
    template = ranker.label
    if template.labels:
        return ServedClasses(template.labels, "softmax", template.readout, {"labels": template.labels})
    ids, tokenizer = template.label_token_ids, served.tokenizer
    names = tuple(str(token) if tokenizer is None else tokenizer.token(token) for token in ids)
    return ServedClasses(names, "softmax", template.readout, {"label_token_ids": list(ids)})
