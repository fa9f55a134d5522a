"""Token ids of a request's continuations: texts of one or more tokens, one set for all items or one per item."""

from collections.abc import Sequence
from typing import Any

from onepass.api import ScoreRequest
from onepass.engine.encoding.ids import Ids, is_list
from onepass.engine.encoding.reader import IdReader
from onepass.engine.encoding.text_limits import check_ids_length, naming
from onepass.errors import RequestError, shown


def continuation_sets(reader: IdReader, request: ScoreRequest, num_items: int) -> tuple[tuple[Ids, ...], ...]:
    texts = request.continuations
    if texts is None:
        return ((),) * num_items
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
        raise RequestError(
            "invalid_continuations", f"continuations must be a non-empty list; got {shown(texts)}", "continuations"
        )
    per_item = [_is_set(entry) for entry in texts]
    if not any(per_item):
        return (_continuation_set(reader, texts, "continuations"),) * num_items
    odd = next(
        (i for i, entry in enumerate(texts) if not per_item[i] and not (is_list(entry) and not len(entry))), None
    )
    if odd is not None:
        raise RequestError(
            "invalid_continuations",
            "continuations must be one list of texts for all items, or one list of texts per item; "
            f"continuations[{per_item.index(True)}] is a list of texts and continuations[{odd}] is not",
            "continuations",
        )
    if len(texts) != num_items:
        raise RequestError(
            "continuation_count_mismatch",
            f"continuations must have one list of texts per item; items: {num_items}, lists: {len(texts)}",
            "continuations",
        )
    return tuple(_continuation_set(reader, row, f"continuations[{i}]") for i, row in enumerate(texts))


def _continuation_set(reader: IdReader, texts: Any, name: str) -> tuple[Ids, ...]:
    if not len(texts):
        raise RequestError("invalid_continuations", f"{name} must hold at least one text; got none", "continuations")
    out = []
    for i, text in enumerate(texts):
        param = f"{name}[{i}]"
        if isinstance(text, str):
            with naming(param, "continuations"):
                ids = tuple(reader.tokenizer_for(param).encode_item(text, reader.max_position))
        else:
            check_ids_length(text, reader.max_position, param, "continuations")
            ids = reader.ids(text, param, "invalid_continuations")
        if not ids:
            raise RequestError(
                "invalid_continuations", f"{param} must have at least one token; got none", "continuations"
            )
        out.append(ids)
    return tuple(out)


def _is_set(entry: Any) -> bool:
    """Whether an entry of `continuations` is one item's own texts, and not a text or its token ids."""
    return is_list(entry) and len(entry) > 0 and (isinstance(entry[0], str) or is_list(entry[0]))
