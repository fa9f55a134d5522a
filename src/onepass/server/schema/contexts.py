"""`/v1/contexts`: a query's keys and values, kept on the device under a handle. Keeping them is the engine's work."""

from dataclasses import dataclass
from typing import Any

from onepass.api import ContextHandle, Text
from onepass.engine.encoding.chat import ChatContext, kept_query
from onepass.errors import RequestError, shown
from onepass.server.schema.chat import CHAT_PROPERTIES, chat_fields
from onepass.server.schema.fields import (
    COUNT,
    MODEL,
    NUMBER,
    PRIORITY,
    SOME_TEXT,
    SOME_TOKEN_IDS,
    TEXT,
    Fields,
    Schema,
    answer_schema,
    body_schema,
    flag,
)

DEFAULT_TTL_SECONDS = 300.0
LONGEST_TTL_SECONDS = 604_800.0  # a week
MESSAGES = "A conversation in place of the query; the part that requests with the same messages share is kept."
CHAT: dict[str, Schema] = {
    name: CHAT_PROPERTIES[name] | ({"description": MESSAGES} if name == "messages" else {})
    for name in CHAT_PROPERTIES
    if name not in ("add_special_tokens", "return_logits", "return_prompt")
}
BODY = body_schema(
    "ContextBody",
    {
        "query": {"anyOf": [SOME_TEXT, SOME_TOKEN_IDS, {"type": "null"}], "description": "Text or token ids."},
        **CHAT,
        "ttl_seconds": {
            "type": ["number", "null"],
            "exclusiveMinimum": 0,
            "maximum": LONGEST_TTL_SECONDS,
            "default": DEFAULT_TTL_SECONDS,
        },
        "pin": flag("Evicted last.", False),
        "model": MODEL,
        "priority": PRIORITY,
    },
)
BODY["examples"] = [{"query": "A long text that many requests share.", "ttl_seconds": 300}]
ANSWER: Schema = answer_schema(
    "Context",
    {
        "id": TEXT,
        "object": {"const": "context"},
        "tokens": COUNT,
        "bytes": COUNT,
        "expires_at": {**NUMBER, "description": "Seconds since 1970."},
        "pinned": {"type": "boolean"},
    },
)
CLOSED: Schema = answer_schema(
    "ClosedContext", {"id": TEXT, "object": {"const": "context"}, "deleted": {"const": True}}
)


@dataclass(frozen=True)
class AskedContext:
    query: Text | ChatContext
    ttl_seconds: float
    pin: bool
    priority: int


def parse(body: dict[str, Any], served_names: tuple[str, ...], priority: int) -> AskedContext:
    fields = Fields.of(body, BODY)
    fields.model(served_names)
    ttl = fields.get("ttl_seconds", DEFAULT_TTL_SECONDS)
    is_number = isinstance(ttl, int | float) and not isinstance(ttl, bool)
    if not is_number or not 0 < ttl <= LONGEST_TTL_SECONDS:
        wanted = f"a number above 0 and at most {LONGEST_TTL_SECONDS:,.0f}"
        raise RequestError("invalid_ttl", f"ttl_seconds must be {wanted}; got {shown(ttl)}", "ttl_seconds")
    given = chat_fields(fields)
    query = kept_query(fields.get("query"), given["messages"], given["chat"])
    if query is None:
        raise RequestError("missing_query", "query (a string or a list of token ids) or messages is required", "query")
    return AskedContext(query, float(ttl), fields.flag("pin"), fields.priority(priority))


def answer(context: ContextHandle) -> dict[str, Any]:
    return {
        "id": context.id,
        "object": "context",
        "tokens": context.tokens,
        "bytes": context.bytes,
        "expires_at": round(context.expires_at, 3),
        "pinned": context.pinned,
    }


def closed(context_id: str) -> dict[str, Any]:
    return {"id": context_id, "object": "context", "deleted": True}
