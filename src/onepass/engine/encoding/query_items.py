"""Token ids of a request's query and of its items, both as text or both as ids; mistakes in them are raised."""

from typing import Any

import numpy as np

from onepass.api import ScoreRequest
from onepass.engine.encoding.ids import Ids, is_list, joined, plain_ids
from onepass.engine.encoding.reader import IdReader
from onepass.engine.encoding.text_limits import check_ids_length, naming
from onepass.errors import RequestError, shown


def query_ids(reader: IdReader, request: ScoreRequest) -> Ids:
    query = request.query
    if query is None:
        raise RequestError("missing_query", "query is required: a string or a list of token ids", "query")
    if isinstance(query, str):
        if not query:
            raise RequestError("empty_query", "query must not be empty; got ''", "query")
        tokenizer = reader.tokenizer_for("query")
        encode = tokenizer.encode_query if request.add_special_tokens else tokenizer.encode_item
        with naming("the query", "query"):
            ids = tuple(encode(query, reader.max_position))
    else:
        check_ids_length(query, reader.max_position, "the query", "query")
        ids = reader.ids(query, "query", "invalid_query_type")
    if not ids:
        raise RequestError("empty_query", "query must have at least one token; got none", "query")
    return ids


def item_ids(
    reader: IdReader, request: ScoreRequest, text_query: bool, free: bool
) -> tuple[tuple[Ids, ...], np.ndarray | None]:
    """The items' tokens, and all of them as one array where that costs nothing."""
    items: Any = request.items
    if items is None:
        raise RequestError("missing_items", "items are required: strings or lists of token ids", "items")
    if isinstance(items, str):
        items = [items]
    if not is_list(items):
        raise RequestError("invalid_items_type", f"items must be a list; got {shown(items)}", "items")
    plain = set(map(type, items)) <= {list, tuple}
    if (text_query or not plain) and _are_texts(items, text_query, free):
        with naming("items[{}]", "items"):
            return tuple(map(tuple, reader.tokenizer_for("items").encode_items(items, reader.max_position))), None
    for i, item in enumerate(items):
        check_ids_length(item, reader.max_position, f"items[{i}]", "items")
    if plain and (flat := plain_ids(joined(items), reader.vocab_size)) is not None:
        return tuple(map(tuple, items)), flat
    return tuple(reader.ids(item, f"items[{i}]", "invalid_items_type") for i, item in enumerate(items)), None


def _are_texts(items: Any, text_query: bool, free: bool) -> bool:
    """Whether items are strings: all of them or none, and of the query's kind unless they are `free`."""
    texts = [isinstance(item, str) for item in items]
    wanted = "strings" if text_query else "lists of token ids"
    if any(texts) != all(texts) or texts[:1] == [not text_query]:
        _check_item_types(items)
    if any(texts) and not all(texts):
        odd = texts.index(not texts[0])
        raise RequestError("mixed_input_types", f"items must be all text or all ids; items[{odd}] differs", "items")
    if texts and not free and texts[0] != text_query:
        raise RequestError("mixed_input_types", f"query and items must be of one kind; items must be {wanted}", "items")
    return bool(texts) and texts[0]


def _check_item_types(items: Any) -> None:
    """Something that is neither text nor ids is told as such, before a mixture of the two is."""
    for i, item in enumerate(items):
        if not isinstance(item, str) and not is_list(item):
            raise RequestError(
                "invalid_items_type",
                f"items[{i}] must be a string or a list of token ids; got {shown(item)}",
                f"items[{i}]",
            )
