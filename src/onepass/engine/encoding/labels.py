"""Token ids of a request's labels: distinct, single tokens of the vocabulary, one set for all items or one per item.

Classes of a classification head are `classes`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from onepass.api import ScoreRequest
from onepass.engine.encoding.ids import Ids, is_list, whole_number
from onepass.engine.encoding.reader import IdReader
from onepass.engine.encoding.text_limits import check_label_size, naming
from onepass.errors import RequestError, shown


def label_sets(reader: IdReader, request: ScoreRequest, num_items: int) -> tuple[Ids, ...]:
    """One set per item; items that share a set share the tuple."""
    labels, ids = request.labels, request.label_token_ids
    if labels is not None and ids is not None:
        raise RequestError("conflicting_labels", "give labels or label_token_ids, not both", "labels")
    if labels is None and ids is None:
        if request.continuations is None:
            raise RequestError("missing_labels", "labels or label_token_ids (or continuations) are required", "labels")
        return ((),) * num_items
    if labels is not None:
        if isinstance(labels, str) or not isinstance(labels, Sequence):
            raise RequestError(
                "invalid_labels_type", f"labels must be a list of strings; got {shown(labels)}", "labels"
            )
        token_ids = [_label(reader, x) for x in labels]
        _check_distinct(labels, token_ids)
        return (label_set(token_ids, reader.vocab_size, "labels"),) * num_items
    if ids is None or not is_list(ids):
        raise RequestError(
            "invalid_token_id_type", f"label_token_ids must be a list; got {shown(ids)}", "label_token_ids"
        )
    if not len(ids):
        raise RequestError("empty_label_token_ids", "label_token_ids must not be empty", "label_token_ids")
    nested = [is_list(x) for x in ids]
    if not any(nested):
        return (label_set(ids, reader.vocab_size, "label_token_ids"),) * num_items
    if not all(nested) or len(ids) != num_items:
        raise RequestError(
            "label_count_mismatch",
            f"label_token_ids must be one list, or one list for each of {num_items} items; got {len(ids)} entries",
            "label_token_ids",
        )
    return tuple(label_set(row, reader.vocab_size, f"label_token_ids[{i}]") for i, row in enumerate(ids))


def label_set(ids: Any, num_labels: int, param: str) -> Ids:
    if not len(ids):
        raise RequestError("empty_label_token_ids", f"{param} must not be empty", param)
    for token in ids:
        value = whole_number(token, param, "invalid_token_id_type")
        if value < 0:
            raise RequestError("negative_token_id", f"{param} must not be negative; got {value}", param)
        if value >= num_labels:
            raise RequestError(
                "token_id_exceeds_vocab",
                f"{param} must be below the vocabulary's {num_labels}; got {value}",
                param,
            )
    label_ids = tuple(int(token) for token in ids)
    twice = next((token for token, count in Counter(label_ids).items() if count > 1), None)
    if twice is not None:
        raise RequestError("duplicate_label", f"{param} must be distinct; token {twice} is given twice", param)
    return label_ids


def _label(reader: IdReader, label: Any) -> int:
    if not isinstance(label, str):
        raise RequestError("invalid_labels_type", f"labels must be strings; got {shown(label)}", "labels")
    tokenizer = reader.tokenizer_for("labels")
    check_label_size(tokenizer, label)
    with naming("a label", "labels"):
        ids = tokenizer.encode_item(label)
    if len(ids) != 1:
        tokens = ", ".join(f"{tokenizer.token(i)!r} ({i})" for i in ids) or "nothing"
        raise RequestError(
            "label_not_single_token",
            f"label {label!r} must be one token; it becomes {len(ids)}: {tokens}; "
            "texts of several tokens are scored as continuations (--continuations in the command)",
            "labels",
        )
    return ids[0]


def _check_distinct(labels: Sequence[str], token_ids: Sequence[int]) -> None:
    first: dict[int, str] = {}
    for label, token in zip(labels, token_ids, strict=True):
        if token in first:
            same = (
                f"{label!r} is given twice"
                if first[token] == label
                else f"{first[token]!r} and {label!r} are one token"
            )
            raise RequestError("duplicate_label", f"labels must be distinct; {same}", "labels")
        first[token] = label
