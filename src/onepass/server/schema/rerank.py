"""Rerank as Jina, Cohere (v1 and v2), vLLM and Infinity speak it: `documents` in, `results` out, best first.

Every dialect's body becomes the same noun, `Rerank`; each has its own answer. Scoring is `rerank`'s work.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from onepass.api import ScoreResult
from onepass.engine.ranking import AskedMethod
from onepass.server.schema.chat import PROMPT, RETURN_PROMPT
from onepass.server.schema.documents import (
    CONVERSATION,
    DOCUMENTS,
    QUERY,
    QUERY_OR_MESSAGES,
    RankQuery,
    document_list,
    document_text,
    rank_field_names,
    rank_query,
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
    flag,
)
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
from onepass.server.schema.usage import USAGE, usage_of

METHOD: Schema = {
    "type": ["string", "null"],
    "enum": ["auto", "likelihood", "label", None],
    "default": "auto",
    "description": "How to rank: by the likelihood of the query after the document, or by yes against no.",
}
TOP_N: Schema = {
    "type": ["integer", "null"],
    "minimum": 0,
    "description": "How many results to return. 0 (vLLM's default), null and nothing: all of them.",
}
USE_ACTIVATION = flag(
    "`false` gives raw scores instead of numbers from 0 to 1. With `method: label` these are log-odds of yes against "
    "no: their sigmoid is the score. With `method: likelihood` they are sums of the query tokens' log-probabilities: "
    "their sigmoid is not the score.",
    True,
)
RAW_SCORES = flag("TEI's name for `use_activation: false`, in every dialect.", False)
BODY = body_schema(
    "RerankBody",
    {
        "query": QUERY,
        "documents": DOCUMENTS,
        "top_n": TOP_N,
        "return_documents": {
            "type": ["boolean", "null"],
            "description": "Tell each result's document. Default: true, as Jina's and vLLM's; false, as Cohere's, on "
            "`/v2/rerank`, for Cohere's own client, and with `rank_fields` or `max_chunks_per_doc`.",
        },
        "rank_fields": {
            "anyOf": [{"type": "array", "items": TEXT, "minItems": 1}, {"type": "null"}],
            "description": "Members of a document object to rank by, in this order.",
        },
        "instruction": INSTRUCTION,
        "instruct": INSTRUCTION,
        **TEXT_LIMITS,
        **CONVERSATION,
        "chat_template_kwargs": {
            "type": ["object", "null"],
            "description": "With messages, variables that the chat template reads. With a query vLLM's way to give the "
            'instruction: `{"instruction": "…"}`, and nothing else.',
        },
        "method": METHOD,
        "model": MODEL,
        "priority": PRIORITY,
        "user": USER,
        "max_chunks_per_doc": {"type": ["integer", "null"], "description": "Cohere's: accepted, without effect."},
        "use_activation": USE_ACTIVATION,
        "raw_scores": RAW_SCORES,
        "return_prompt": RETURN_PROMPT,
    },
    ("documents",),
)
BODY["anyOf"] = QUERY_OR_MESSAGES
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
        "truncated": TRUNCATED,
    },
    optional=("document", "truncated"),
)
META = answer_schema(
    "RerankMeta",
    {"api_version": {"type": "object"}, "billed_units": {"type": "object"}, "tokens": {"type": "object"}},
)
ANSWER = answer_schema(
    "Reranking",
    {
        "id": TEXT,
        "model": TEXT,
        "usage": USAGE,
        "results": {"type": "array", "items": RESULT},
        "meta": META,
        "query_truncated": TRUNCATED,
        "prompt": PROMPT,
    },
    optional=("query_truncated", "prompt"),
)


@dataclass(frozen=True)
class Rerank:
    """What any rerank body asks for. `documents` are texts; `originals` are they as they came."""

    query: RankQuery
    documents: tuple[str, ...]
    originals: tuple[Any, ...]
    model: str
    priority: int
    top: int | None = None
    return_documents: bool = True
    instruction: str | None = None
    method: AskedMethod = "auto"
    limits: TextLimits = NO_LIMITS
    raw_scores: bool = False
    return_prompt: bool = False  # the answer has what the model was given, of documents in the order they came


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
    query_truncated: bool = False


def returns_documents(path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> bool:
    """The default of `return_documents`. Jina and vLLM tell documents unless asked not to, Cohere only when asked
    to (v1) or never (v2). `/v1/rerank` is both Jina's and Cohere's: Cohere's client signs its requests, and two
    members are Cohere's alone. What cannot be told apart is Jina's."""
    if path == "/v2/rerank" or any(body.get(name) is not None for name in ("rank_fields", "max_chunks_per_doc")):
        return False
    signed = headers.get("x-fern-sdk-name", "") == "cohere" or headers.get("user-agent", "").startswith("cohere/")
    return not signed


def parse(body: dict[str, Any], served_names: tuple[str, ...], priority: int, return_documents: bool = True) -> Rerank:
    """`return_documents` is what holds where the body does not say."""
    fields = Fields.of(body, BODY)
    model = fields.model(served_names)
    originals = document_list(fields.get("documents"), "documents")
    rank_fields = rank_field_names(fields.get("rank_fields"))
    query = rank_query(fields)
    names = ("instruction", "instruct")
    instruction = instruction_of(fields, *names) if query.conversation is None else fields.first(*names)
    fields.text("user")
    fields.whole("max_chunks_per_doc", 1)
    return Rerank(
        query,
        tuple(document_text(document, f"documents[{i}]", rank_fields) for i, document in enumerate(originals)),
        tuple(originals),
        model,
        fields.priority(priority),
        top=fields.whole("top_n", 0) or None,
        return_documents=fields.flag("return_documents", return_documents),
        instruction=instruction,
        method=method_of(fields),
        limits=text_limits(fields),
        raw_scores=fields.flag("raw_scores") or not fields.flag("use_activation", True),
        return_prompt=fields.flag("return_prompt"),
    )


def method_of(fields: Fields) -> AskedMethod:
    return cast(AskedMethod, fields.choice("method", ("auto", "likelihood", "label"), "auto"))


def answer(call: Rerank, reranked: Reranked, document: Literal["object", "text"] = "object") -> dict[str, Any]:
    results: list[dict[str, Any]] = []
    for rank in reranked.ranked:
        row: dict[str, Any] = {"index": rank.index, "relevance_score": rank.score}
        if call.return_documents:
            row["document"] = _document(call, rank.index, document)
        results.append(row | truncated_member(rank.truncated))
    usage = usage_of([reranked.result])
    out: dict[str, Any] = {
        "id": reranked.id,
        "model": call.model,
        "usage": usage,
        "results": results,
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": usage["prompt_tokens"], "output_tokens": 0},
        },
    }
    if reranked.result.prompt is not None:
        out["prompt"] = reranked.result.prompt.to_dict()
    return out | ({"query_truncated": True} if reranked.query_truncated else {})


def _document(call: Rerank, index: int, form: str) -> Any:
    if form == "text":
        return call.documents[index]
    original = call.originals[index]
    return original if isinstance(original, dict) else {"text": original}
