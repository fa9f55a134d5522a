"""Rerank as Voyage speaks it: `documents` with `top_k` (or `truncation`) in, a list of `data` out."""

from typing import Any

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
    count_from_one,
    flag,
)
from onepass.server.schema.rerank import METHOD, RAW_SCORES, Rerank, Reranked, method_of
from onepass.server.schema.text_limits import INSTRUCTION, TRUNCATED, TextLimits, truncated_member
from onepass.server.schema.usage import USAGE, usage_of
from onepass.server.truncation import FIT_THE_MODEL

BODY = body_schema(
    "VoyageRerankBody",
    {
        "query": QUERY,
        **CONVERSATION,
        "documents": DOCUMENTS,
        "top_k": count_from_one("How many results to return; all of them if null."),
        "truncation": flag("Cut documents to what the model takes; what was cut says so.", False),
        "return_documents": flag("Tell each result's document.", False),
        "instruction": INSTRUCTION,
        "method": METHOD,
        "raw_scores": RAW_SCORES,
        "model": MODEL,
        "priority": PRIORITY,
    },
    ("documents",),
)
BODY["anyOf"] = QUERY_OR_MESSAGES
RESULT: Schema = answer_schema(
    "VoyageResult",
    {"index": COUNT, "relevance_score": NUMBER, "document": TEXT, "truncated": TRUNCATED},
    optional=("document", "truncated"),
)
ANSWER: Schema = answer_schema(
    "VoyageReranking",
    {"object": {"const": "list"}, "data": {"type": "array", "items": RESULT}, "model": TEXT, "usage": USAGE},
)


def is_voyage(body: dict[str, Any]) -> bool:
    """Its client always sends both, `top_k` also as null."""
    return "documents" in body and ("top_k" in body or "truncation" in body)


def parse(body: dict[str, Any], served_names: tuple[str, ...], priority: int) -> Rerank:
    fields = Fields.of(body, BODY)
    model = fields.model(served_names)
    originals = document_list(fields.get("documents"), "documents")
    return Rerank(
        rank_query(fields),
        tuple(document_text(document, f"documents[{i}]") for i, document in enumerate(originals)),
        tuple(originals),
        model,
        fields.priority(priority),
        top=fields.whole("top_k", 1),
        return_documents=fields.flag("return_documents"),
        instruction=fields.text("instruction"),
        method=method_of(fields),
        limits=TextLimits(FIT_THE_MODEL if fields.flag("truncation") else None),
        raw_scores=fields.flag("raw_scores"),
    )


def answer(call: Rerank, reranked: Reranked) -> dict[str, Any]:
    data: list[dict[str, Any]] = []
    for rank in reranked.ranked:
        row: dict[str, Any] = {"index": rank.index, "relevance_score": rank.score}
        if call.return_documents:
            row["document"] = call.documents[rank.index]
        data.append(row | truncated_member(rank.truncated))
    return {"object": "list", "data": data, "model": call.model, "usage": usage_of([reranked.result])}
