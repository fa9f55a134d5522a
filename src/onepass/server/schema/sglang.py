"""Rerank as SGLang speaks it, asked for with the header `X-Compat: sglang`: `documents` in, a bare list out.

Its body is Jina's (`rerank.BODY`), with `instruct` for the instruction; only the answer differs.
"""

from typing import Any

from onepass.server.schema.fields import COUNT, NUMBER, TEXT, Schema, answer_schema
from onepass.server.schema.rerank import Rerank, Reranked
from onepass.server.schema.text_limits import TRUNCATED, truncated_member

META_INFO = answer_schema(
    "SglangMetaInfo",
    {
        "id": TEXT,
        "prompt_tokens": {**COUNT, "description": "Of the whole request."},
        "cached_tokens": COUNT,
        "e2e_latency": {**NUMBER, "description": "Seconds."},
    },
)
ANSWER: Schema = {
    "title": "SglangReranking",
    "type": "array",
    "items": answer_schema(
        "SglangRank",
        {
            "score": NUMBER,
            "document": {"anyOf": [TEXT, {"type": "null"}]},
            "index": COUNT,
            "meta_info": META_INFO,
            "truncated": TRUNCATED,
        },
        optional=("truncated",),
    ),
}


def answer(call: Rerank, reranked: Reranked) -> list[dict[str, Any]]:
    meta_info = {
        "id": reranked.id,
        "prompt_tokens": reranked.result.usage.prompt_tokens,
        "cached_tokens": reranked.result.usage.cached_tokens,
        "e2e_latency": reranked.seconds,
    }
    out: list[dict[str, Any]] = []
    for rank in reranked.ranked:
        document = call.documents[rank.index] if call.return_documents else None
        row: dict[str, Any] = {"score": rank.score, "document": document, "index": rank.index, "meta_info": meta_info}
        out.append(row | truncated_member(rank.truncated))
    return out
