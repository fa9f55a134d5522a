"""`POST /v1/modes`: a request of `/v1/score` run in every mode, the tiles that each computes, its steps in time.

The figures are made by `visualize.document`; a server answers this only where it was started with `--visualizer`.
"""

from dataclasses import dataclass, replace
from typing import Any

from onepass.server.engines.service import ModesOptions
from onepass.server.schema.fields import COUNT, NUMBER, NUMBERS, TEXT, Fields, Schema, answer_schema, body_schema
from onepass.server.schema.scoring import score
from onepass.server.schema.scoring.trace import TRACE

MAX_REPEATS = 9
DEFAULT_REPEATS = 3
NOT_HERE = (
    "mode",
    "context_id",
    "return_trace",
    "return_prompt",
    "return_token_logprobs",
    "return_logits",
    "label_mass",
)
_SHARED = {name: member for name, member in score.BODY["properties"].items() if name not in NOT_HERE}
BODY = body_schema(
    "ModesBody",
    {
        **_SHARED,
        "repeats": {
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": MAX_REPEATS,
            "default": DEFAULT_REPEATS,
            "description": "Timed runs of each mode, after one that is not timed.",
        },
        "chunk_size": {
            "type": ["integer", "null"],
            "minimum": 1,
            "description": "Items per copy of the context in mode chunked (default: a quarter of the items).",
        },
    },
    ("items",),
)
BODY["examples"] = [score.BODY["examples"][0]]
RUNS: Schema = {"type": "array", "items": {"type": "array", "items": COUNT, "minItems": 3, "maxItems": 3}}
MODE = answer_schema(
    "ModeRun",
    {
        "mode": {"enum": ["serial", "packed-dense", "packed-segment", "chunked", "extend"]},
        "reason": TEXT,
        "attention": {**TEXT, "description": "The kernel that computed attention."},
        "steps": COUNT,
        "prompt_tokens": COUNT,
        "computed_tokens": COUNT,
        "tokens_computed_twice": COUNT,
        "tile": answer_schema("TileSize", {"tokens": COUNT, "page": COUNT}),
        "tiles": {**COUNT, "description": "Counted from the table that the kernel walks."},
        "tiles_needed": {**COUNT, "description": "Counted by the visibility rule, token by token."},
        "pairs": {**COUNT, "description": "Of a token and a key, in the tiles that are computed."},
        "pairs_seen": {**COUNT, "description": "Of these, those that the visibility rule allows."},
        "end_ms": {**NUMBER, "description": "From the request's arrival at the engine to its last step's end."},
        "total_ms": {**NUMBER, "description": "Of the run of median time."},
        "times_ms": NUMBERS,
        "drawn": {
            "type": "array",
            "items": answer_schema(
                "DrawnStep",
                {
                    "rung": COUNT,
                    "tiles": COUNT,
                    "rows": {**COUNT, "description": "Blocks of asking tokens."},
                    "entries": {**COUNT, "description": "Pages of context keys."},
                    "own_blocks": {**COUNT, "description": "Blocks of the step's own keys."},
                    "runs": {
                        "type": "object",
                        "additionalProperties": RUNS,
                        "description": "Consecutive tiles of a kind as [row, first, end].",
                    },
                },
            ),
            "description": "The first steps, tile by tile.",
        },
        "trace": TRACE,
    },
)
ANSWER = answer_schema(
    "Modes",
    {
        "object": {"const": "modes"},
        "model": TEXT,
        "repeats": COUNT,
        "modes": {"type": "array", "items": MODE},
    },
)


@dataclass(frozen=True)
class ModesRequest:
    """A request of `/v1/score` that is to be run in every mode, and how."""

    score: score.AskedScore
    options: ModesOptions


def parse(body: dict[str, Any], served_names: tuple[str, ...], priority: int) -> ModesRequest:
    fields = Fields.of(body, BODY)
    repeats = fields.whole("repeats", 1, MAX_REPEATS) or DEFAULT_REPEATS
    options = ModesOptions(repeats, fields.whole("chunk_size", 1))
    shared = {name: value for name, value in body.items() if name in _SHARED}
    asked = score.parse(shared, served_names, priority)
    return ModesRequest(replace(asked, request=replace(asked.request, return_trace=True)), options)


def answer(asked: ModesRequest, document: dict[str, Any]) -> dict[str, Any]:
    return {"object": "modes", "model": asked.score.model, **document}
