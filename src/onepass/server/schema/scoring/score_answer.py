"""The answer of `POST /v1/score`: a `ScoreResult` into JSON, whole or in lines as its parts are ready.

The request is `score`.
"""

from typing import Any

from onepass.api import ScoreResult
from onepass.server.engines.service import Part
from onepass.server.http.request_context import RequestContext
from onepass.server.schema.chat import PROMPT
from onepass.server.schema.fields import COUNT, NUMBER, NUMBERS, TEXT, Schema, answer_schema
from onepass.server.schema.scoring.score import AskedScore
from onepass.server.schema.scoring.trace import TRACE
from onepass.server.schema.scoring.trace import answer as trace_answer
from onepass.server.schema.usage import USAGE, usage_of

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
