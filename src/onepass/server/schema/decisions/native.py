"""Our own decisions: `state`, questions in the words of any of the three APIs, and `candidates` for a grid."""

from collections.abc import Mapping
from typing import Any

from onepass.api import MODES, Prompt
from onepass.decisions.decider import DecisionPlan
from onepass.decisions.question_format import candidates_of, questions_of
from onepass.decisions.questions import MAX_CANDIDATES, MAX_QUESTIONS, DecisionRequest
from onepass.decisions.result import DecisionResult
from onepass.errors import RequestError
from onepass.server.schema.chat import PROMPT, RETURN_PROMPT
from onepass.server.schema.decisions.fields import ABOUT, JSON_TEXT, OWN_OPTIONS, DecisionCall, permutations_of
from onepass.server.schema.fields import COUNT, MODEL, TEXT, Fields, answer_schema, body_schema

BODY = body_schema(
    "DecisionBody",
    {
        "model": MODEL,
        "state": {**JSON_TEXT, "description": "What the questions are about: a text, messages or JSON."},
        "questions": {
            "anyOf": [
                {"type": "array", "items": {"type": "object"}, "minItems": 1, "maxItems": MAX_QUESTIONS},
                {"type": "object", "additionalProperties": {"type": "object"}, "minProperties": 1},
            ],
            "description": "In a list or by name: predicate, choice (choices) or score (levels).",
        },
        "candidates": {
            "anyOf": [
                {"type": "array", "items": {**TEXT, "minLength": 1}, "minItems": 1, "maxItems": MAX_CANDIDATES},
                {"type": "null"},
            ],
            "description": "Every question is asked about each of these, under the same state, in the same pass.",
        },
        "mode": {"type": ["string", "null"], "enum": [*MODES, None], "default": "auto"},
        "return_prompt": RETURN_PROMPT,
        **OWN_OPTIONS,
    },
    ("state", "questions"),
)
BODY["examples"] = [
    {
        "state": "Wanted: a present for a boy of ten who likes the sea.",
        "candidates": ["a book about whales", "an electric razor"],
        "questions": {"fits": {"type": "predicate", "instructions": "Does the candidate fit?"}},
    }
]
ANSWER = answer_schema(
    "Decisions",
    {
        "object": {"const": "decisions"},
        "model": TEXT,
        "answers": {"type": "array", "description": "In the order of the questions; with candidates a list for each."},
        "mode": TEXT,
        "reason": TEXT,
        "num_reads": {**COUNT, "description": "Prompts read: questions times candidates times permutations."},
        "usage": {"type": "object"},
        "timings": {"type": "object"},
        "prompt": PROMPT,
        **ABOUT,
    },
    optional=("prompt",),
)


def is_own(body: Mapping[str, Any]) -> bool:
    """`candidates`, or a state with questions that are no object: no other API has these."""
    return "candidates" in body or ("state" in body and not isinstance(body.get("questions"), Mapping))


def parse(body: dict[str, Any], served_names: tuple[str, ...], priority: int) -> DecisionCall:
    if "input" in body:
        beside = "candidates" if "candidates" in body else "state"
        raise RequestError("conflicting_fields", f"give state instead of input: there is {beside}", "input")
    fields = Fields.of(body, BODY)
    if fields.get("state") is None:
        raise RequestError("missing_state", "state is required: a text, an object or a list", "state")
    if fields.get("questions") is None:
        raise RequestError("missing_questions", "questions is required: a list, or an object by name", "questions")
    request = DecisionRequest(
        state=fields.get("state"),
        questions=questions_of(fields.get("questions")),
        candidates=candidates_of(fields.get("candidates")),
        permutations=permutations_of(fields),
        calibrated=fields.flag("calibrated", True),
        mode=fields.get("mode", "auto"),
    )
    return DecisionCall(
        "onepass",
        request,
        fields.model(served_names),
        fields.priority(priority),
        answer,
        return_prompt=fields.flag("return_prompt"),
    )


def answer(call: DecisionCall, plan: DecisionPlan, result: DecisionResult) -> dict[str, Any]:
    return {**result.to_dict(), "model": call.model}


def prompt_answer(plan: DecisionPlan, prompt: Prompt) -> dict[str, Any]:
    """The prompt of every read with its question, its labels and, of a grid, its candidate."""
    out = prompt.to_dict()
    count = len(plan.reads)
    for place, item in enumerate(out["items"]):
        read = plan.reads[place % count]
        item |= {"question": read.question, "labels": [label.text for label in read.labels]}
        if plan.request.candidates is not None:
            item["candidate"] = place // count
    return out
