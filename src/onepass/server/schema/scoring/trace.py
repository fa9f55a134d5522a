"""`return_trace` in an answer of `/v1/score`: the steps that computed the request, as JSON."""

from typing import Any

from onepass.server.schema.fields import COUNT, NUMBER, answer_schema
from onepass.trace import Trace

DIGITS = 3  # of milliseconds

TRACE = answer_schema(
    "Trace",
    {
        "page": {**COUNT, "description": "Tokens of a page of the KV cache."},
        "steps": {
            "type": "array",
            "items": answer_schema(
                "TraceStep",
                {
                    "number": {**COUNT, "description": "Of the engine's steps since it started."},
                    "rung": {**COUNT, "description": "Tokens that the step's program is compiled for."},
                    "tokens": {**COUNT, "description": "Of this request."},
                    "all_tokens": {**COUNT, "description": "Of all requests in the step."},
                    "computed_tokens": {**COUNT, "description": "With the padding that the kernels compute."},
                    "cached_tokens": {**COUNT, "description": "Of this request's contexts, in pages before the step."},
                    "pages_read": {**COUNT, "description": "Page-table entries of this request."},
                    "readouts": COUNT,
                    "launched_ms": {**NUMBER, "description": "After the request reached the engine."},
                    "collected_ms": NUMBER,
                    "device_ms": NUMBER,
                    "compilations": COUNT,
                    "segments": {
                        "type": "array",
                        "items": answer_schema(
                            "TraceSegment",
                            {
                                "first": {**COUNT, "description": "The request's tokens in this step before it."},
                                "tokens": COUNT,
                                **dict.fromkeys(("segment", "parent", "context"), COUNT),
                                "position": {**COUNT, "description": "Of the first token."},
                                "item": {"type": ["integer", "null"], "description": "null: the context's tokens."},
                            },
                        ),
                    },
                    "replica": COUNT,
                },
            ),
        },
        "omitted_steps": COUNT,
        "omitted_segments": COUNT,
    },
)


def answer(trace: Trace) -> dict[str, Any]:
    out = trace.to_dict()
    for step in out["steps"]:
        for name in ("launched_ms", "collected_ms", "device_ms"):
            step[name] = round(step[name], DIGITS)
    return out
