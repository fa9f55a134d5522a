"""`POST /v1/score`: our own dialect, a superset of SGLang's. The body into a `ScoreRequest`, a `ScoreResult` into JSON.

What the values must be (types, ranges, tokens) is checked by `engine.encoding.encode`, which every way of asking
shares.
"""

from dataclasses import dataclass
from typing import Any

from onepass.api import MODES, ScoreRequest, ScoreResult
from onepass.errors import RequestError
from onepass.server.engines.service import Part
from onepass.server.http.request_context import RequestContext
from onepass.server.schema.chat import CHAT_PROPERTIES, PROMPT, chat_fields
from onepass.server.schema.fields import (
    COUNT,
    MODEL,
    NUMBER,
    NUMBERS,
    PRIORITY,
    SOME_TEXT,
    SOME_TOKEN_IDS,
    TEXT,
    TOKEN_IDS,
    USER,
    Fields,
    Schema,
    answer_schema,
    body_schema,
    flag,
    optional_text,
)
from onepass.server.schema.trace import TRACE
from onepass.server.schema.trace import answer as trace_answer
from onepass.server.schema.usage import USAGE, usage_of

TEXTS_OR_IDS: Schema = {"type": "array", "items": {"anyOf": [TEXT, TOKEN_IDS]}, "minItems": 1}
ITEMS: Schema = {
    "anyOf": [TEXT, {"type": "array", "items": TEXT}, {"type": "array", "items": TOKEN_IDS}],
    "description": "What is scored; of the same kind as the query. [] is answered with no scores.",
}
LABEL_IDS: Schema = {
    "anyOf": [TOKEN_IDS, {"type": "array", "items": TOKEN_IDS}, {"type": "null"}],
    "description": "Token ids of the labels, or one such list for each item.",
}
BODY = body_schema(
    "ScoreBody",
    {
        "query": {
            "anyOf": [SOME_TEXT, SOME_TOKEN_IDS, {"type": "null"}],
            "description": "The shared context.",
        },
        "items": ITEMS,
        "labels": {
            "anyOf": [{"type": "array", "items": TEXT}, {"type": "null"}],
            "description": "Labels as text, each a single token, most often with a leading space. Either these or "
            "`label_token_ids`.",
        },
        "label_token_ids": LABEL_IDS,
        "continuations": {
            "anyOf": [TEXTS_OR_IDS, {"type": "array", "items": TEXTS_OR_IDS, "minItems": 1}, {"type": "null"}],
            "description": "Texts of any length whose log-probability after query + item is wanted: one list for all "
            "items, or one list per item (multiple choice).",
        },
        "apply_softmax": flag("Softmax over the labels alone; else probabilities in the whole vocabulary.", False),
        "temperature": {
            "type": ["number", "null"],
            "exclusiveMinimum": 0,
            "default": 1.0,
            "description": "Only with apply_softmax.",
        },
        "item_first": flag("The sequence is item + query.", False),
        "delimiter_token_id": {
            "type": ["integer", "null"],
            "minimum": 0,
            "description": "A token between query and items, part of the shared context.",
        },
        "return_token_logprobs": flag("Also tell the labels' log-probabilities in the whole vocabulary.", False),
        "label_mass": flag("Tell how much probability the labels hold; false spares work with apply_softmax.", True),
        "mode": {
            "type": ["string", "null"],
            "enum": [*MODES, None],
            "default": "auto",
            "description": "How the request is computed; scores are the same up to rounding. `auto` decides. `packed`: "
            "the query with its items in one step. `extend`: items after a query that is kept. `chunked`: the query "
            "again for every few items. `serial`: one item at a time, to compare with.",
        },
        "context_id": optional_text("A kept context instead of a query."),
        **CHAT_PROPERTIES,
        "return_trace": flag("Also return the steps that computed the request, with sizes and times.", False),
        "model": MODEL,
        "priority": PRIORITY,
        "rid": {
            "anyOf": [TEXT, {"type": "array", "items": TEXT}, {"type": "null"}],
            "description": "SGLang's request id: accepted, and without effect.",
        },
        "user": USER,
        "return_pooled_hidden_states": {"enum": [False, None], "description": "SGLang's; there are none to return."},
    },
    ("items",),
)
BODY["examples"] = [
    {
        "query": "The capital of",
        "items": [" France is", " Italy is"],
        "labels": [" Paris", " Rome"],
        "apply_softmax": True,
    }
]
TIMINGS = answer_schema(
    "Timings",
    {
        **dict.fromkeys(("queue_ms", "encode_ms", "device_ms", "total_ms"), NUMBER),
        "padding_ratio": {**NUMBER, "description": "Work done over work needed, 1 at best."},
        "compilations": {**COUNT, "description": "Programs compiled for this request; 0 once the server is ready."},
    },
)
SCORE_USAGE = answer_schema(
    "ScoreUsage",
    {
        **USAGE["properties"],
        "prompt_tokens_details": answer_schema(
            "ScoreTokensDetails", {"cached_tokens": COUNT, "computed_tokens": COUNT}
        ),
    },
)
CONTINUATION = answer_schema(
    "Continuation",
    {"logprob": NUMBER, "mean_logprob": NUMBER, "is_greedy": {"type": "boolean"}, "token_logprobs": NUMBERS},
)
OPTIONAL_ROWS: Schema = {"anyOf": [{"type": "array", "items": NUMBERS}, {"type": "null"}]}
SUMMARY: dict[str, Schema] = {
    "id": TEXT,
    "object": {"const": "scoring"},
    "created": COUNT,
    "model": {**TEXT, "description": "As the request named it."},
    "token_logprobs": OPTIONAL_ROWS,
    "label_mass": {"anyOf": [NUMBERS, {"type": "null"}]},
    "mode": TEXT,
    "reason": {**TEXT, "description": "Why this mode."},
    "timings": TIMINGS,
    "usage": SCORE_USAGE,
    "continuations": {"type": "array", "items": {"type": "array", "items": CONTINUATION}},
    "prompt": PROMPT,
    "trace": TRACE,
    "logits": {"type": "array", "items": NUMBERS},
}
ANSWER = answer_schema(
    "Scoring",
    {"scores": {"type": "array", "items": NUMBERS}, **SUMMARY},
    optional=("continuations", "prompt", "trace", "logits"),
)
PART = answer_schema(
    "ScoringPart",
    {
        "object": {"const": "scoring.part"},
        "first": COUNT,
        "scores": {"type": "array", "items": NUMBERS},
        "token_logprobs": OPTIONAL_ROWS,
    },
    optional=("token_logprobs",),
)


@dataclass(frozen=True)
class AskedScore:
    """What the body asks for, and how the answer is to be told."""

    request: ScoreRequest
    model: str
    priority: int
    return_token_logprobs: bool
    return_logits: bool = False


def parse(body: dict[str, Any], served_names: tuple[str, ...], priority: int) -> AskedScore:
    fields = Fields.of(body, BODY)
    model = fields.model(served_names)
    logprobs = fields.flag("return_token_logprobs")
    if logprobs and fields.get("label_mass") is False and fields.get("apply_softmax"):
        message = "return_token_logprobs needs the pass over the vocabulary that label_mass=false spares"
        raise RequestError("conflicting_label_mass", message, "label_mass")
    if fields.get("return_pooled_hidden_states", False) is not False:
        message = "hidden states are not returned; leave return_pooled_hidden_states out"
        raise RequestError("unsupported_field", message, "return_pooled_hidden_states")
    _check_ignored(fields)
    context = fields.text("context_id")
    if context is not None and fields.get("query") is not None:
        raise RequestError("conflicting_query", "give query or context_id, not both", "query")
    request = ScoreRequest(
        query=fields.get("query"),
        items=fields.get("items"),
        labels=fields.get("labels"),
        label_token_ids=fields.get("label_token_ids"),
        continuations=fields.get("continuations"),
        apply_softmax=fields.get("apply_softmax", False),
        temperature=fields.get("temperature", 1.0),
        item_first=fields.get("item_first", False),
        delimiter_token_id=fields.get("delimiter_token_id"),
        mode=fields.get("mode", "auto"),
        context=context,
        label_mass=fields.get("label_mass", True),
        return_trace=fields.flag("return_trace"),
        **chat_fields(fields),
    )
    return AskedScore(request, model, fields.priority(priority), logprobs, fields.flag("return_logits"))


def _check_ignored(fields: Fields) -> None:
    fields.text("user")
    rid = fields.get("rid", "")
    if not isinstance(rid, str) and not (isinstance(rid, list) and all(isinstance(one, str) for one in rid)):
        raise RequestError("invalid_rid", "rid must be a string or a list of strings", "rid")


def answer(call: AskedScore, result: ScoreResult, exchange: RequestContext, created: int) -> dict[str, Any]:
    members = summary(call, result, exchange, created)
    head = {name: members[name] for name in ("id", "object", "created", "model")}
    return {**head, "scores": result.scores, **members}


def summary(call: AskedScore, result: ScoreResult, exchange: RequestContext, created: int) -> dict[str, Any]:
    """Everything of the answer but the scores."""
    timings = result.timings
    out: dict[str, Any] = {
        "id": f"score-{exchange.request_id}",
        "object": "scoring",
        "created": created,
        "model": call.model,
        "token_logprobs": result.logprobs if call.return_token_logprobs else None,
        "label_mass": result.label_mass,
        "mode": result.mode,
        "reason": result.reason,
        "timings": {
            "queue_ms": round(timings.queue_ms, 3),
            "encode_ms": round(timings.encode_ms, 3),
            "device_ms": round(timings.device_ms, 3),
            "total_ms": round(1e3 * exchange.seconds, 3),
            "padding_ratio": round(timings.padding_ratio or 1.0, 3),
            "compilations": timings.compilations,
        },
        "usage": usage_of([result]),
    }
    out["usage"]["prompt_tokens_details"]["computed_tokens"] = result.usage.computed_tokens
    if result.continuations is not None:
        out["continuations"] = result.to_dict()["continuations"]
    if call.return_logits:
        out["logits"] = result.logits
    if result.prompt is not None:
        out["prompt"] = result.prompt.to_dict()
    if result.trace is not None:
        out["trace"] = trace_answer(result.trace)
    return out


def part(call: AskedScore, part: Part) -> dict[str, Any]:
    out: dict[str, Any] = {"object": "scoring.part", "first": part.first, "scores": part.scores}
    return out | ({"token_logprobs": part.logprobs} if call.return_token_logprobs else {})


def last_line(call: AskedScore, result: ScoreResult, exchange: RequestContext, created: int) -> dict[str, Any]:
    """The summary that ends a stream. Log-probabilities were told with their parts."""
    out = summary(call, result, exchange, created)
    del out["token_logprobs"]
    return {**out, "items": len(result.scores)}
