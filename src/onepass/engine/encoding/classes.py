"""Labels of a request to a model with a classification head: its classes by name or number, all of them by default."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from onepass.api import ScoreRequest
from onepass.engine.encoding.ids import Ids, is_list
from onepass.errors import RequestError, shown
from onepass.loading.rerankers.readouts import ClassHead


def class_ids(head: ClassHead, request: ScoreRequest, num_items: int) -> tuple[Ids, ...]:
    """The classes that are scored after each item."""
    if request.continuations is not None:
        message = "this model has a classification head and no vocabulary to score continuations with"
        raise RequestError("no_language_model_head", message, "continuations")
    if request.labels is not None and request.label_token_ids is not None:
        raise RequestError("conflicting_labels", "give labels or label_token_ids, not both", "labels")
    if request.label_token_ids is not None:
        given = request.label_token_ids
        if not is_list(given):
            raise RequestError("invalid_token_id_type", f"label_token_ids must be a list; got {shown(given)}")
        rows = given if any(map(is_list, given)) else [given] * num_items
        if len(rows) != num_items:
            message = f"label_token_ids must be one list, or one list for each of {num_items} items; got {len(rows)}"
            raise RequestError("label_count_mismatch", message, "label_token_ids")
        return tuple(_checked(head, row) for row in rows)
    if request.labels is None:
        return (tuple(range(len(head.labels))),) * num_items
    return (_checked(head, [_number(head, label) for label in _texts(request.labels)]),) * num_items


def class_scores(head: ClassHead, logits: np.ndarray) -> np.ndarray:
    """Of a head whose classes do not exclude each other: each by itself."""
    values = logits.astype(np.float64)
    if head.activation == "identity":
        return values
    return np.where(values >= 0, 1 / (1 + np.exp(-np.abs(values))), 1 - 1 / (1 + np.exp(-np.abs(values))))


def _texts(labels: Any) -> Sequence[Any]:
    if isinstance(labels, str) or not isinstance(labels, Sequence) or not labels:
        raise RequestError("invalid_labels_type", f"labels must be a list of strings; got {shown(labels)}", "labels")
    return labels


def _number(head: ClassHead, label: Any) -> int:
    if label not in head.labels:
        classes = ", ".join(head.labels[:20]) + (", …" if len(head.labels) > 20 else "")
        raise RequestError("unknown_class", f"labels must be classes of this model: {classes}; got {shown(label)}")
    return head.labels.index(label)


def _checked(head: ClassHead, ids: Any) -> Ids:
    count = len(head.labels)
    if not is_list(ids) or not len(ids):
        raise RequestError("empty_label_token_ids", "label_token_ids must not be empty", "label_token_ids")
    if any(isinstance(n, bool) or not isinstance(n, int | np.integer) or not 0 <= n < count for n in ids):
        message = f"with a classification head, label_token_ids are classes from 0 to {count - 1}; got {shown(ids)}"
        raise RequestError("token_id_exceeds_vocab", message, "label_token_ids")
    if len(set(ids)) != len(ids):
        raise RequestError("duplicate_label", f"labels must be distinct; got {shown(ids)}", "labels")
    return tuple(int(n) for n in ids)
