"""Rerank as Jina, Cohere (v1 and v2), vLLM and Infinity speak it: `documents` in, `results` out, best first.

Every dialect's body becomes the same noun, `Rerank`; each has its own answer. Scoring is `reranking`'s work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from onepass.api import ScoreResult
from onepass.engine.ranking import AskedMethod
from onepass.errors import RequestError
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
    count_from_one,
    flag,
    optional_text,
    shown,
)
from onepass.server.schema.usage import USAGE, usage_of
from onepass.server.truncation import Cut, Side

DOCUMENT: Schema = {
    "anyOf": [TEXT, {"type": "object"}],
    "description": 'A text, or an object with a "text" (or with the rank_fields).',
}
DOCUMENTS: Schema = {"type": "array", "items": DOCUMENT, "minItems": 1}
METHOD: Schema = {
    "type": ["string", "null"],
    "enum": ["auto", "likelihood", "label", None],
    "default": "auto",
    "description": "How to rank: by the likelihood of the query after the document, or by yes against no.",
}
INSTRUCTION = optional_text("What relevance means here; models trained with an instruction follow it.")
TOP_N = count_from_one("How many results to return; all of them if left out.")
BODY = body_schema(
    "RerankBody",
    {
        "query": TEXT,
        "documents": DOCUMENTS,
        "top_n": TOP_N,
        "return_documents": flag("Tell each result's document.", True),
        "rank_fields": {
            "anyOf": [{"type": "array", "items": TEXT, "minItems": 1}, {"type": "null"}],
            "description": "Members of a document object to rank by, in this order.",
        },
        "instruction": INSTRUCTION,
        "instruct": INSTRUCTION,
        "max_tokens_per_doc": count_from_one("Cut documents to this many tokens; what was cut says so."),
        "truncate_prompt_tokens": {
            "type": ["integer", "null"],
            "minimum": -1,
            "description": "vLLM's: cut documents so that a prompt has so many tokens; -1: as the model takes.",
        },
        "truncation_side": {"type": ["string", "null"], "default": "right", "description": "left or right"},
        "method": METHOD,
        "model": MODEL,
        "priority": PRIORITY,
        "user": USER,
        "max_chunks_per_doc": {"type": ["integer", "null"], "description": "Cohere's: accepted, without effect."},
        "use_activation": flag("false gives raw scores, as vLLM does.", True),
    },
    ("query", "documents"),
)
BODY["examples"] = [
    {
        "query": "What is the capital of France?",
        "documents": ["Paris is the capital of France.", "Rome is in Italy."],
        "top_n": 2,
    }
]
RESULT = answer_schema(
    "RerankResult",
    {
        "index": COUNT,
        "relevance_score": NUMBER,
        "document": {
            "anyOf": [{"type": "object"}, TEXT],
            "description": "An object with the text; with X-Compat: infinity the text itself.",
        },
        "truncated": {"const": True},
    },
    optional=("document", "truncated"),
)
META = answer_schema(
    "RerankMeta",
    {"api_version": {"type": "object"}, "billed_units": {"type": "object"}, "tokens": {"type": "object"}},
)
ANSWER = answer_schema(
    "Reranking",
    {"id": TEXT, "model": TEXT, "usage": USAGE, "results": {"type": "array", "items": RESULT}, "meta": META},
)


@dataclass(frozen=True)
class Rerank:
    """What any rerank body asks for. `documents` are texts; `originals` are they as they came."""

    query: str
    documents: tuple[str, ...]
    originals: tuple[Any, ...]
    model: str
    priority: int
    top: int | None = None
    return_documents: bool = True
    instruction: str | None = None
    method: AskedMethod = "auto"
    cut: Cut | None = None
    raw_scores: bool = False


@dataclass(frozen=True)
class Ranked:
    """One document's place in the answer."""

    index: int
    score: float
    truncated: bool


@dataclass(frozen=True)
class Reranked:
    """The best first, as many as were asked for, and what it took."""

    ranked: tuple[Ranked, ...]
    result: ScoreResult
    id: str
    seconds: float


def parse(body: dict[str, Any], served_model: str, priority: int) -> Rerank:
    fields = Fields.of(body, BODY)
    model = fields.model(served_model)
    originals = document_list(fields.get("documents"), "documents")
    rank_fields = _rank_fields(fields.get("rank_fields"))
    instruction = fields.first("instruction", "instruct")
    if instruction is not None and not isinstance(instruction, str):
        raise RequestError(
            "invalid_instruction", f"instruction must be a string; got {shown(instruction)}", "instruction"
        )
    fields.text("user")
    fields.whole("max_chunks_per_doc", 1)
    return Rerank(
        query_text(fields.get("query")),
        tuple(document_text(one, f"documents[{i}]", rank_fields) for i, one in enumerate(originals)),
        tuple(originals),
        model,
        fields.priority(priority),
        fields.whole("top_n", 1),
        fields.flag("return_documents", True),
        instruction,
        method_of(fields),
        _cut(fields),
        not fields.flag("use_activation", True),
    )


def query_text(value: Any) -> str:
    """NVIDIA's and multimodal clients send {"text": …}."""
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        value = value["text"]
    if value is None:
        raise RequestError("missing_query", "query is required: a string", "query")
    if not isinstance(value, str):
        raise RequestError("invalid_query_type", f"query must be a string; got {shown(value)}", "query")
    if not value:
        raise RequestError("empty_query", "query must not be empty; got ''", "query")
    return value


def document_list(value: Any, name: str) -> list[Any]:
    """Vendors refuse an empty list, and so do we."""
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


def method_of(fields: Fields) -> AskedMethod:
    return cast(AskedMethod, fields.choice("method", ("auto", "likelihood", "label"), "auto"))


def _rank_fields(value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise RequestError("invalid_rank_fields", f"rank_fields must be names; got {shown(value)}", "rank_fields")
    return value


def _cut(fields: Fields) -> Cut | None:
    side = cast(Side, fields.choice("truncation_side", ("right", "left"), "right"))
    document, prompt = fields.whole("max_tokens_per_doc", 1), fields.whole("truncate_prompt_tokens", -1)
    if prompt == 0:
        raise RequestError(
            "invalid_truncate_prompt_tokens",
            "truncate_prompt_tokens must be -1 or at least 1; got 0",
            "truncate_prompt_tokens",
        )
    if document is None and prompt is None:
        return None
    return Cut(document, None if prompt == -1 else prompt, prompt is not None, side)


def answer(asked: Rerank, reranked: Reranked, document: Literal["object", "text"] = "object") -> dict[str, Any]:
    results: list[dict[str, Any]] = []
    for one in reranked.ranked:
        told: dict[str, Any] = {"index": one.index, "relevance_score": one.score}
        if asked.return_documents:
            told["document"] = _document(asked, one.index, document)
        results.append(told | ({"truncated": True} if one.truncated else {}))
    usage = usage_of([reranked.result])
    return {
        "id": reranked.id,
        "model": asked.model,
        "usage": usage,
        "results": results,
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": usage["prompt_tokens"], "output_tokens": 0},
        },
    }


def _document(asked: Rerank, index: int, form: str) -> Any:
    if form == "text":
        return asked.documents[index]
    original = asked.originals[index]
    return original if isinstance(original, dict) else {"text": original}
