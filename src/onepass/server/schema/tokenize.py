"""`/tokenize` and `/detokenize`, in the shape that vLLM and SGLang share."""

from collections.abc import Callable
from functools import cache
from typing import Any

from onepass.engine.encoding.text_limits import check_ids_length, naming
from onepass.errors import RequestError, TooLong, shown
from onepass.server.engines.service import Served
from onepass.server.schema.fields import (
    COUNT,
    MODEL,
    TEXT,
    TOKEN_IDS,
    Fields,
    Schema,
    answer_schema,
    body_schema,
    flag,
    is_whole,
)

LIMITS = 2  # how many times the model's limit a text may have: one that is too long can still be counted
MAX_TOKENS = 1 << 20  # of all texts together
TEXTS: Schema = {"anyOf": [TEXT, {"type": "array", "items": TEXT}, {"type": "null"}]}
BODY = body_schema(
    "TokenizeBody",
    {
        "prompt": {**TEXTS, "description": "A text, or several."},
        "text": {**TEXTS, "description": "Another name of prompt."},
        "add_special_tokens": flag("As a query (with the tokenizer's beginning), else as an item.", True),
        "return_token_strs": flag("Also tell each token as text.", False),
        "model": MODEL,
    },
)
BODY["examples"] = [{"prompt": "Hello, world!"}]
IDS: Schema = {"anyOf": [TOKEN_IDS, {"type": "array", "items": TOKEN_IDS}]}
ANSWER: Schema = answer_schema(
    "Tokens",
    {
        "tokens": IDS,
        "count": {"anyOf": [COUNT, {"type": "array", "items": COUNT}]},
        "max_model_len": COUNT,
        "token_strs": {"anyOf": [{"type": "array"}, {"type": "null"}]},
    },
)
DETOKENIZE_BODY = body_schema("DetokenizeBody", {"tokens": IDS, "model": MODEL}, ("tokens",))
DETOKENIZE_BODY["examples"] = [{"tokens": [1, 2, 3]}]
DETOKENIZE_ANSWER: Schema = answer_schema(
    "Detokenized", {name: {"anyOf": [TEXT, {"type": "array", "items": TEXT}]} for name in ("prompt", "text")}
)


def tokenize(body: dict[str, Any], served: Served) -> dict[str, Any]:
    fields = Fields.of(body, BODY)
    fields.model(served.names)
    special, with_texts = fields.flag("add_special_tokens", True), fields.flag("return_token_strs")
    given = fields.first("prompt", "text")
    if given is None:
        raise RequestError("missing_prompt", "prompt is required: a string or a list of strings", "prompt")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RequestError("invalid_prompt", f"prompt must be a string or strings; got {shown(given)}", "prompt")
    tokenizer = served.tokenizer
    if tokenizer is None:
        raise RequestError("no_tokenizer", f"{served.model} has no tokenizer: it takes token ids only", "prompt")
    rows = _rows(texts, tokenizer.encode_query if special else tokenizer.encode_item, LIMITS * served.max_position)
    name = cache(tokenizer.token)
    names = [[name(token) for token in row] for row in rows] if with_texts else None
    one = isinstance(given, str)
    return {
        "tokens": rows[0] if one else rows,
        "count": len(rows[0]) if one else [len(row) for row in rows],
        "max_model_len": served.max_position,
        "token_strs": names[0] if one and names else names,
    }


def _rows(texts: list[str], encode: Callable[[str, int], list[int]], limit: int) -> list[list[int]]:
    rows, left = [], MAX_TOKENS
    for i, text in enumerate(texts):
        with naming(f"prompt[{i}]" if len(texts) > 1 else "prompt", "prompt"):
            rows.append(encode(text, limit))
        left -= len(rows[-1])
        if left < 0:
            raise TooLong(f"the texts together have more than {MAX_TOKENS:,} tokens, the limit", "prompt")
    return rows


def detokenize(body: dict[str, Any], served: Served) -> dict[str, Any]:
    fields = Fields.of(body, DETOKENIZE_BODY)
    fields.model(served.names)
    given = fields.get("tokens")
    if not isinstance(given, list):
        raise RequestError("invalid_tokens", f"tokens must be a list of token ids; got {shown(given)}", "tokens")
    many = bool(given) and all(isinstance(row, list) for row in given)
    if served.tokenizer is None:
        raise RequestError("no_tokenizer", f"{served.model} has no tokenizer: it takes token ids only", "tokens")
    rows = given if many else [given]
    for row in rows:
        check_ids_length(row, LIMITS * served.max_position, "tokens", "tokens")
    if (count := sum(map(len, rows))) > MAX_TOKENS:
        raise TooLong(f"the lists together have {count:,} tokens; the limit is {MAX_TOKENS:,}", "tokens")
    texts = [served.tokenizer.decode(_ids(row, served.vocab_size)) for row in rows]
    text = texts if many else texts[0]
    return {"prompt": text, "text": text}


def _ids(row: list[Any], vocab_size: int) -> list[int]:
    for token in row:
        if not is_whole(token):
            raise RequestError("invalid_token_id_type", f"tokens must be whole numbers; got {shown(token)}", "tokens")
        if not 0 <= token < vocab_size:
            message = f"tokens must be from 0 to {vocab_size - 1}; got {shown(token)}"
            raise RequestError("token_id_out_of_range", message, "tokens")
    return [int(token) for token in row]
