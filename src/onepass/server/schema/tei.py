"""Rerank as Text Embeddings Inference speaks it: `texts` in, a bare list out. Hugging Face's clients send this."""

from dataclasses import replace
from typing import Any

from onepass.server.http.errors import ErrorResponse
from onepass.server.schema.documents import (
    CONVERSATION,
    DOCUMENTS,
    QUERY,
    QUERY_OR_MESSAGES,
    document_list,
    document_text,
    rank_query,
)
from onepass.server.schema.fields import (
    COUNT,
    MODEL,
    NUMBER,
    PRIORITY,
    TEXT,
    Fields,
    Schema,
    answer_schema,
    body_schema,
    flag,
)
from onepass.server.schema.rerank import METHOD, TOP_N, Rerank, Reranked, method_of
from onepass.server.schema.text_limits import INSTRUCTION, SIDE, TRUNCATED, TextLimits, side_of, truncated_member
from onepass.server.truncation import FIT_THE_MODEL

BODY = body_schema(
    "TeiRerankBody",
    {
        "query": QUERY,
        **CONVERSATION,
        "texts": DOCUMENTS,
        "raw_scores": flag("Log-odds (or log-probabilities) instead of numbers from 0 to 1.", False),
        "return_text": flag("Tell each result's text.", False),
        "truncate": flag("Cut texts to what the model takes; what was cut says so.", False),
        "truncation_direction": SIDE,
        "top_n": TOP_N,
        "instruction": INSTRUCTION,
        "method": METHOD,
        "model": MODEL,
        "priority": PRIORITY,
    },
    ("texts",),
)
BODY["anyOf"] = QUERY_OR_MESSAGES
ANSWER: Schema = {
    "title": "TeiReranking",
    "type": "array",
    "items": answer_schema(
        "TeiRank",
        {"index": COUNT, "score": NUMBER, "text": TEXT, "truncated": TRUNCATED},
        optional=("text", "truncated"),
    ),
}


ERROR: Schema = answer_schema(
    "TeiError",
    {
        "error": {**TEXT, "description": "The message."},
        "error_type": {"enum": ["Unhealthy", "Backend", "Overloaded", "Validation"]},
        "code": {**TEXT, "description": "As `error.code` of other dialects."},
        "param": {"type": ["string", "null"]},
    },
)


def error_body(fault: ErrorResponse) -> dict[str, Any]:
    """TEI's error: the message as a string, and one of its types. `code` and `param` are ours."""
    types = {429: "Overloaded", 500: "Backend", 503: "Unhealthy", 504: "Backend"}
    error_type = types.get(fault.status, "Validation")
    return {"error": fault.shown, "error_type": error_type, "code": fault.code, "param": fault.param}


def is_tei(body: dict[str, Any]) -> bool:
    return "texts" in body


def parse(body: dict[str, Any], served_names: tuple[str, ...], priority: int) -> Rerank:
    fields = Fields.of(body, BODY)
    model = fields.model(served_names)
    originals = document_list(fields.get("texts"), "texts")
    side = side_of(fields, "truncation_direction")
    return Rerank(
        rank_query(fields),
        tuple(document_text(document, f"texts[{i}]") for i, document in enumerate(originals)),
        tuple(originals),
        model,
        fields.priority(priority),
        top=fields.whole("top_n", 0) or None,
        return_documents=fields.flag("return_text"),
        instruction=fields.text("instruction"),
        method=method_of(fields),
        limits=TextLimits(replace(FIT_THE_MODEL, side=side) if fields.flag("truncate") else None),
        raw_scores=fields.flag("raw_scores"),
    )


def answer(call: Rerank, reranked: Reranked) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for rank in reranked.ranked:
        row: dict[str, Any] = {"index": rank.index, "score": rank.score}
        if call.return_documents:
            row["text"] = call.documents[rank.index]
        out.append(row | truncated_member(rank.truncated))
    return out
