"""Rerank as Jina, Cohere (v1 and v2), vLLM and Infinity speak it: `documents` in, `results` out, best first.

Every dialect's body becomes the same noun, `Rerank`; each has its own answer. Scoring is `reranking`'s work.
"""

from dataclasses import dataclass
from typing import Any, Literal, cast

from onepass.api import ScoreResult
from onepass.engine.ranking import AskedMethod
from onepass.errors import RequestError
from onepass.server.schema.documents import (
    DOCUMENTS,
    QUERY,
    document_list,
    document_text,
    query_text,
    rank_field_names,
)
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
        "query": QUERY,
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
    rank_fields = rank_field_names(fields.get("rank_fields"))
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


def method_of(fields: Fields) -> AskedMethod:
    return cast(AskedMethod, fields.choice("method", ("auto", "likelihood", "label"), "auto"))


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
