"""`POST /v1/score`: our own dialect, a superset of SGLang's. The body into a `ScoreRequest`.

What the values must be (types, ranges, tokens) is checked by `engine.encoding.encode`, which every way of asking
shares. The answer is `score_answer`.
"""

from dataclasses import dataclass
from typing import Any

from onepass.api import MODES, ScoreRequest
from onepass.errors import RequestError
from onepass.server.schema.chat import CHAT_PROPERTIES, chat_fields
from onepass.server.schema.fields import (
    MODEL,
    PRIORITY,
    SOME_TEXT,
    SOME_TOKEN_IDS,
    TEXT,
    TOKEN_IDS,
    USER,
    Fields,
    Schema,
    body_schema,
    flag,
    optional_text,
)

TEXTS_OR_IDS: Schema = {"type": "array", "items": {"anyOf": [TEXT, TOKEN_IDS]}, "minItems": 1}
ITEMS: Schema = {
    "anyOf": [TEXT, {"type": "array", "items": TEXT}, {"type": "array", "items": TOKEN_IDS}],
    "description": "What is scored; of the same kind as the query. [] is answered with no scores.",
}
LABEL_IDS: Schema = {
    "anyOf": [TOKEN_IDS, {"type": "array", "items": TOKEN_IDS}, {"type": "null"}],
    "description": "Token ids of the labels, or one such list for each item.",
}
BODY = body_schema(
    "ScoreBody",
    {
        "query": {
            "anyOf": [SOME_TEXT, SOME_TOKEN_IDS, {"type": "null"}],
            "description": "The shared context.",
        },
        "items": ITEMS,
        "labels": {
            "anyOf": [{"type": "array", "items": TEXT}, {"type": "null"}],
            "description": "Labels as text, each a single token, most often with a leading space. Either these or "
            "`label_token_ids`.",
        },
        "label_token_ids": LABEL_IDS,
        "continuations": {
            "anyOf": [TEXTS_OR_IDS, {"type": "array", "items": TEXTS_OR_IDS, "minItems": 1}, {"type": "null"}],
            "description": "Texts of any length whose log-probability after query + item is wanted: one list for all "
            "items, or one list per item (multiple choice).",
        },
        "apply_softmax": flag("Softmax over the labels alone; else probabilities in the whole vocabulary.", False),
        "temperature": {
            "type": ["number", "null"],
            "exclusiveMinimum": 0,
            "default": 1.0,
            "description": "Only with apply_softmax.",
        },
        "item_first": flag("The sequence is item + query.", False),
        "delimiter_token_id": {
            "type": ["integer", "null"],
            "minimum": 0,
            "description": "A token between query and items, part of the shared context.",
        },
        "return_token_logprobs": flag("Also tell the labels' log-probabilities in the whole vocabulary.", False),
        "label_mass": flag("Tell how much probability the labels hold; false spares work with apply_softmax.", True),
        "mode": {
            "type": ["string", "null"],
            "enum": [*MODES, None],
            "default": "auto",
            "description": "How the request is computed; scores are the same up to rounding. `auto` decides. `packed`: "
            "the query with its items in one step. `extend`: items after a query that is kept. `chunked`: the query "
            "again for every few items. `serial`: one item at a time, to compare with.",
        },
        "context_id": optional_text("A kept context instead of a query."),
        **CHAT_PROPERTIES,
        "return_trace": flag("Also return the steps that computed the request, with sizes and times.", False),
        "model": MODEL,
        "priority": PRIORITY,
        "rid": {
            "anyOf": [TEXT, {"type": "array", "items": TEXT}, {"type": "null"}],
            "description": "SGLang's request id: accepted, and without effect.",
        },
        "user": USER,
        "return_pooled_hidden_states": {"enum": [False, None], "description": "SGLang's; there are none to return."},
    },
    ("items",),
)
BODY["examples"] = [
    {
        "query": "The capital of",
        "items": [" France is", " Italy is"],
        "labels": [" Paris", " Rome"],
        "apply_softmax": True,
    }
]


@dataclass(frozen=True)
class AskedScore:
    """What the body asks for, and how the answer is to be told."""

    request: ScoreRequest
    model: str
    priority: int
    return_token_logprobs: bool
    return_logits: bool = False


def parse(body: dict[str, Any], served_names: tuple[str, ...], priority: int) -> AskedScore:
    fields = Fields.of(body, BODY)
    model = fields.model(served_names)
    logprobs = fields.flag("return_token_logprobs")
    if logprobs and fields.get("label_mass") is False and fields.get("apply_softmax"):
        message = "return_token_logprobs needs the pass over the vocabulary that label_mass=false spares"
        raise RequestError("conflicting_label_mass", message, "label_mass")
    if fields.get("return_pooled_hidden_states", False) is not False:
        message = "hidden states are not returned; leave return_pooled_hidden_states out"
        raise RequestError("unsupported_field", message, "return_pooled_hidden_states")
    _check_ignored(fields)
    context = fields.text("context_id")
    if context is not None and fields.get("query") is not None:
        raise RequestError("conflicting_query", "give query or context_id, not both", "query")
    request = ScoreRequest(
        query=fields.get("query"),
        items=fields.get("items"),
        labels=fields.get("labels"),
        label_token_ids=fields.get("label_token_ids"),
        continuations=fields.get("continuations"),
        apply_softmax=fields.get("apply_softmax", False),
        temperature=fields.get("temperature", 1.0),
        item_first=fields.get("item_first", False),
        delimiter_token_id=fields.get("delimiter_token_id"),
        mode=fields.get("mode", "auto"),
        context=context,
        label_mass=fields.get("label_mass", True),
        return_trace=fields.flag("return_trace"),
        **chat_fields(fields),
    )
    return AskedScore(request, model, fields.priority(priority), logprobs, fields.flag("return_logits"))


def _check_ignored(fields: Fields) -> None:
    fields.text("user")
    rid = fields.get("rid", "")
    if not isinstance(rid, str) and not (isinstance(rid, list) and all(isinstance(one, str) for one in rid)):
        raise RequestError("invalid_rid", "rid must be a string or a list of strings", "rid")
