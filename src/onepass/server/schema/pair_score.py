"""Pairs as vLLM's `/score` takes them: one query with N documents, or N with N; a score for each pair."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onepass.engine.ranking import AskedMethod
from onepass.errors import RequestError, shown
from onepass.server.http.request_context import RequestContext
from onepass.server.schema.fields import (
    COUNT,
    MODEL,
    NUMBER,
    PRIORITY,
    TEXT,
    USER,
    Fields,
    Schema,
    answer_schema,
    body_schema,
)
from onepass.server.schema.rerank import METHOD, USE_ACTIVATION, method_of
from onepass.server.schema.text_limits import (
    INSTRUCTION,
    NO_LIMITS,
    TRUNCATED,
    TextLimits,
    instruction_of,
    text_limits,
    truncated_member,
)
from onepass.server.schema.text_limits import MEMBERS as TEXT_LIMITS
from onepass.server.schema.vllm import (
    MULTIMODAL,
    activation_members,
    list_answer,
    list_schema,
    refuse_multimodal,
    wants_raw,
)

FIRST = ("queries", "text_1", "data_1")
SECOND = ("documents", "items", "text_2", "data_2")
TEXTS: Schema = {"anyOf": [TEXT, {"type": "array", "items": TEXT, "minItems": 1}, {"type": "null"}]}
BODY = body_schema(
    "PairScoreBody",
    {
        **{name: {**TEXTS, "description": "The queries: one, or as many as documents."} for name in FIRST},
        **{name: {**TEXTS, "description": "The documents."} for name in SECOND},
        "instruction": INSTRUCTION,
        "method": METHOD,
        "model": MODEL,
        "priority": PRIORITY,
        "user": USER,
        **activation_members(USE_ACTIVATION),
        **TEXT_LIMITS,
        **MULTIMODAL,
    },
)
BODY["anyOf"] = [{"required": [name]} for name in FIRST]
BODY["examples"] = [{"text_1": "What is the capital of France?", "text_2": ["Paris.", "Rome."]}]
ANSWER: Schema = list_schema(
    "PairScores",
    answer_schema(
        "PairScore",
        {"index": COUNT, "object": {"const": "score"}, "score": NUMBER, "truncated": TRUNCATED},
        optional=("truncated",),
    ),
)


@dataclass(frozen=True)
class PairResult:
    score: float
    truncated: bool = False  # the pair's document was cut, as the request asked


@dataclass(frozen=True)
class Pairs:
    """`queries[i]` with `documents[i]`."""

    queries: tuple[str, ...]
    documents: tuple[str, ...]
    model: str
    priority: int
    instruction: str | None
    method: AskedMethod
    raw_scores: bool
    limits: TextLimits = NO_LIMITS

    def by_query(self) -> dict[str, list[int]]:
        """The places of each distinct query: one request to the engine for each."""
        places: dict[str, list[int]] = {}
        for i, query in enumerate(self.queries):
            places.setdefault(query, []).append(i)
        return places


def is_pairs(body: dict[str, Any]) -> bool:
    return any(name in body for name in FIRST)


def parse(body: dict[str, Any], served_names: tuple[str, ...], priority: int) -> Pairs:
    if body.get("query") is not None:
        given = next(name for name in FIRST if name in body)
        raise RequestError("conflicting_fields", f"give query and items, or {given} and its pair, not both", given)
    fields = Fields.of(body, BODY)
    model = fields.model(served_names)
    queries, documents = _texts(fields, FIRST), _texts(fields, SECOND)
    if len(queries) != 1 and len(queries) != len(documents):
        message = f"there must be one query, or as many as documents; got {len(queries)} and {len(documents)}"
        raise RequestError("pair_count_mismatch", message, FIRST[0])
    if not all(queries):
        raise RequestError("empty_query", "queries must not be empty; got ''", FIRST[0])
    refuse_multimodal(fields)
    fields.text("user")
    return Pairs(
        tuple(queries) if len(queries) == len(documents) else tuple(queries) * len(documents),
        tuple(documents),
        model,
        fields.priority(priority),
        instruction_of(fields, "instruction"),
        method_of(fields),
        wants_raw(fields),
        text_limits(fields),
    )


def _texts(fields: Fields, names: tuple[str, ...]) -> list[str]:
    value = fields.first(*names)
    given = next((name for name in names if fields.get(name) is not None), names[0])
    if value is None:
        raise RequestError("missing_items", f"one of {', '.join(names)} is required", names[0])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RequestError("invalid_items_type", f"{given} must be a string or strings; got {shown(value)}", given)
    if not texts:
        raise RequestError("empty_documents", f"{given} must not be empty; got []", given)
    return texts


def answer(
    model: str, scores: Sequence[PairResult], usage: dict[str, Any], exchange: RequestContext, created: int
) -> dict[str, Any]:
    data = [
        {"index": number, "object": "score", "score": pair.score} | truncated_member(pair.truncated)
        for number, pair in enumerate(scores)
    ]
    return list_answer(f"score-{exchange.request_id}", created, model, data, usage)
