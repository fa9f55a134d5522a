"""Queries and documents as rerank clients send them: texts, or objects with a text in them. All become texts.

In place of a query there may be messages, as in `/v1/score`. What is wrong with one is said with its place; an empty
list of documents is wrong, as it is to the vendors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onepass.engine.encoding.chat import ChatContext
from onepass.errors import RequestError, shown
from onepass.server.schema.chat import CHAT_PROPERTIES, chat_options
from onepass.server.schema.fields import SOME_TEXT, TEXT, Fields, Schema

DOCUMENT: Schema = {
    "anyOf": [TEXT, {"type": "object"}],
    "description": 'A text, or an object with a "text" (or with the rank_fields).',
}
QUERY: Schema = {
    "anyOf": [SOME_TEXT, {"type": "object", "properties": {"text": SOME_TEXT}, "required": ["text"]}],
    "description": 'A text, or an object with a "text".',
}
DOCUMENTS: Schema = {
    "anyOf": [{"type": "array", "items": DOCUMENT, "minItems": 1}, TEXT],
    "description": "The documents; one string is one document.",
}
CONVERSATION: dict[str, Schema] = {
    **{
        name: CHAT_PROPERTIES[name]
        for name in (
            "messages",
            "item_role",
            "chat_template",
            "chat_template_kwargs",
            "add_generation_prompt",
            "continue_final_message",
        )
    },
    "labels": {
        "anyOf": [{"type": "array", "items": TEXT, "minItems": 1}, {"type": "null"}],
        "description": "With messages: answers of one token each, of which the first means relevant. Default: what the "
        "model's own template reads, else yes and no.",
    },
}
QUERY_OR_MESSAGES = [{"required": ["query"]}, {"required": ["messages"]}]


@dataclass(frozen=True)
class RankQuery:
    """What documents are ranked by: a text, or a conversation that each document is put into. `labels` are the answers
    to that conversation."""

    text: str | None
    conversation: ChatContext | None = None
    labels: tuple[str, ...] | None = None


def rank_query(fields: Fields) -> RankQuery:
    labels, messages = fields.get("labels"), fields.get("messages")
    if messages is None:
        if labels is not None:
            raise RequestError(
                "conflicting_labels", "labels are for messages; a query is asked as the model is", "labels"
            )
        return RankQuery(query_text(fields.get("query")))
    if fields.get("query") is not None:
        raise RequestError("conflicting_query", "give messages or query, not both", "query")
    if labels is not None and (not isinstance(labels, list) or not all(isinstance(one, str) for one in labels)):
        raise RequestError("invalid_labels", f"labels must be a list of strings; got {shown(labels)}", "labels")
    return RankQuery(None, ChatContext(messages, chat_options(fields)), None if labels is None else tuple(labels))


def query_text(value: Any) -> str:
    """NVIDIA's and multimodal clients send {"text": …}."""
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        value = value["text"]
    if value is None:
        raise RequestError("missing_query", "query is required: a string (or messages in its place)", "query")
    if not isinstance(value, str):
        raise RequestError("invalid_query_type", f"query must be a string; got {shown(value)}", "query")
    if not value:
        raise RequestError("empty_query", "query must not be empty; got ''", "query")
    return value


def document_list(value: Any, name: str) -> list[Any]:
    """Vendors refuse an empty list, and so do we. One string is one document, as in vLLM."""
    if isinstance(value, str):
        return [value]
    if value is None:
        raise RequestError("missing_documents", f"{name} are required: a list of strings", name)
    if not isinstance(value, list):
        raise RequestError("invalid_documents_type", f"{name} must be a list of strings; got {shown(value)}", name)
    if not value:
        raise RequestError("empty_documents", f"{name} must not be empty; got []", name)
    return value


def document_text(value: Any, param: str, rank_fields: Sequence[str] = ()) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and rank_fields:
        lines = [f"{name}: {value[name]}" for name in rank_fields if isinstance(value.get(name), str | int | float)]
        if lines:
            return "\n".join(lines) if len(lines) > 1 else str(value[lines[0].split(":")[0]])
    elif isinstance(value, dict) and isinstance(value.get("text"), str):
        return str(value["text"])
    wanted = f"an object with one of {', '.join(rank_fields)}" if rank_fields else 'an object with a string "text"'
    message = f"{param} must be a string or {wanted}; got {shown(value)}"
    raise RequestError("invalid_documents_type", message, param)


def rank_field_names(value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise RequestError("invalid_rank_fields", f"rank_fields must be names; got {shown(value)}", "rank_fields")
    return value
