"""Rerank as NVIDIA's NIM speaks it (`/v1/ranking`): `passages` in, `rankings` with logits out."""

from typing import Any

from onepass.server.schema.documents import QUERY, RankQuery, document_list, document_text, query_text
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
)
from onepass.server.schema.rerank import METHOD, Rerank, Reranked, method_of
from onepass.server.schema.text_limits import TRUNCATED, TextLimits, truncated_member
from onepass.server.schema.usage import USAGE, usage_of
from onepass.server.truncation import FIT_THE_MODEL

PASSAGE: Schema = {"type": "object", "properties": {"text": TEXT}, "required": ["text"]}
BODY = body_schema(
    "NvidiaRankingBody",
    {
        "query": QUERY,
        "passages": {"type": "array", "items": PASSAGE, "minItems": 1},
        "truncate": {"type": ["string", "null"], "default": "NONE", "description": "END cuts passages; NONE does not."},
        "top_k": count_from_one("How many rankings to return."),
        "method": METHOD,
        "model": MODEL,
        "priority": PRIORITY,
    },
    ("query", "passages"),
)
BODY["examples"] = [
    {
        "query": {"text": "What is the capital of France?"},
        "passages": [{"text": "Paris is the capital of France."}, {"text": "Rome is in Italy."}],
    }
]
ANSWER: Schema = answer_schema(
    "NvidiaRankings",
    {
        "rankings": {
            "type": "array",
            "items": answer_schema(
                "NvidiaRanking",
                {"index": COUNT, "logit": NUMBER, "truncated": TRUNCATED},
                optional=("truncated",),
            ),
        },
        "usage": USAGE,
    },
)


def parse(body: dict[str, Any], served_names: tuple[str, ...], priority: int) -> Rerank:
    fields = Fields.of(body, BODY)
    model = fields.model(served_names)
    originals = document_list(fields.get("passages"), "passages")
    cuts = fields.choice("truncate", ("none", "end"), "none") == "end"
    return Rerank(
        RankQuery(query_text(fields.get("query"))),
        tuple(document_text(document, f"passages[{i}]") for i, document in enumerate(originals)),
        tuple(originals),
        model,
        fields.priority(priority),
        top=fields.whole("top_k", 1),
        method=method_of(fields),
        limits=TextLimits(FIT_THE_MODEL if cuts else None),
        raw_scores=True,
    )


def answer(call: Rerank, reranked: Reranked) -> dict[str, Any]:
    rankings: list[dict[str, Any]] = []
    for rank in reranked.ranked:
        row: dict[str, Any] = {"index": rank.index, "logit": rank.score}
        rankings.append(row | truncated_member(rank.truncated))
    return {"rankings": rankings, "usage": usage_of([reranked.result])}
