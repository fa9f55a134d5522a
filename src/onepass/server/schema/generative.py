"""vLLM's `/generative_scoring`: the question of `/v1/score` with softmax unless refused, answered by P(first label)."""

from typing import Any

from onepass.api import ScoreRequest
from onepass.errors import RequestError
from onepass.server.schema.fields import (
    MODEL,
    PRIORITY,
    SOME_TEXT,
    SOME_TOKEN_IDS,
    TEXT,
    TOKEN_IDS,
    USER,
    Fields,
    body_schema,
    flag,
    optional_text,
)
from onepass.server.schema.scoring.score import AskedScore

BODY = body_schema(
    "GenerativeScoringBody",
    {
        "query": {"anyOf": [SOME_TEXT, SOME_TOKEN_IDS]},
        "items": {
            "anyOf": [
                {"type": "array", "items": TEXT, "minItems": 1},
                {"type": "array", "items": TOKEN_IDS, "minItems": 1},
            ]
        },
        "label_token_ids": SOME_TOKEN_IDS,
        "apply_softmax": flag("Softmax over the labels alone.", True),
        "item_first": flag("The sequence is item + query.", False),
        "add_special_tokens": flag("The tokenizer's beginning goes on a text query; false is not supported.", True),
        "model": MODEL,
        "priority": PRIORITY,
        "request_id": optional_text("Accepted, and without effect."),
        "user": USER,
    },
    ("query", "items", "label_token_ids"),
)
BODY["examples"] = [{"query": [1, 2, 3], "items": [[4], [5]], "label_token_ids": [6, 7]}]


def parse(body: dict[str, Any], served_names: tuple[str, ...], priority: int) -> AskedScore:
    fields = Fields.of(body, BODY)
    model = fields.model(served_names)
    if not fields.flag("add_special_tokens", True) and isinstance(fields.get("query"), str):
        message = "add_special_tokens=false is not supported with a text query; send its token ids"
        raise RequestError("unsupported_field", message, "add_special_tokens")
    for name in ("request_id", "user"):
        fields.text(name)
    items = fields.get("items")
    if items == []:
        raise RequestError("missing_items", "items must hold at least one item; got []", "items")
    request = ScoreRequest(
        query=fields.get("query"),
        items=items,
        label_token_ids=fields.get("label_token_ids"),
        apply_softmax=fields.flag("apply_softmax", True),
        item_first=fields.flag("item_first"),
    )
    return AskedScore(request, model, fields.priority(priority), False)
