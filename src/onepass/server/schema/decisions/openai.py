"""OpenAI's decisions: `input`, and a list of predicates, choices and scores; answers in the order of the questions."""

from typing import Any

from onepass.decisions.decider import DecisionPlan
from onepass.decisions.questions import MAX_OPTIONS, MAX_QUESTIONS, DecisionRequest, Option, Question
from onepass.decisions.result import DecisionAnswer, DecisionResult
from onepass.decisions.state import part_text
from onepass.errors import RequestError, shown
from onepass.server.schema.decisions.fields import (
    ABOUT,
    OWN_OPTIONS,
    PROBABILITY,
    DecisionCall,
    about,
    members,
    permutations_of,
    wrong,
    wrong_type,
)
from onepass.server.schema.fields import COUNT, MODEL, NUMBER, TEXT, Fields, Schema, answer_schema, body_schema

NAME: Schema = {"type": ["string", "null"]}
PARTS: Schema = {"anyOf": [TEXT, {"type": "array", "items": {"type": "object"}, "minItems": 1}]}
VALUE: Schema = {"type": ["string", "boolean"]}
DESCRIPTION: Schema = {"type": ["string", "null"]}
PREDICATE = body_schema(
    "PredicateQuestion", {"type": {"const": "predicate"}, "instructions": PARTS, "name": NAME}, ("type", "instructions")
)
CHOICE = body_schema(
    "ChoiceQuestion",
    {
        "type": {"const": "choice"},
        "instructions": PARTS,
        "choices": {
            "type": "array",
            "items": body_schema("Choice", {"value": VALUE, "description": DESCRIPTION}, ("value",)),
            "minItems": 2,
            "maxItems": MAX_OPTIONS,
        },
        "name": NAME,
    },
    ("type", "instructions", "choices"),
)
SCORE = body_schema(
    "ScoreQuestion",
    {
        "type": {"const": "score"},
        "instructions": PARTS,
        "levels": {
            "type": "array",
            "items": body_schema("Level", {"label": TEXT, "description": DESCRIPTION}, ("label",)),
            "minItems": 1,
            "maxItems": MAX_OPTIONS,
        },
        "name": NAME,
    },
    ("type", "instructions", "levels"),
)
OPTIONS = {"choice": ("choices", "value"), "score": ("levels", "label")}
BODY = body_schema(
    "OpenAIDecisionBody",
    {
        "model": MODEL,
        "input": {**PARTS, "description": "What the questions are about: a text, or messages and tool calls."},
        "questions": {
            "type": "array",
            "items": {"oneOf": [PREDICATE, CHOICE, SCORE]},
            "minItems": 1,
            "maxItems": MAX_QUESTIONS,
        },
        "prompt_cache_key": {"type": ["string", "null"], "description": "Accepted: every state is kept and reused."},
        "prompt_cache_options": {"type": ["object", "null"], "description": "Accepted, as prompt_cache_key."},
        "safety_identifier": {"type": ["string", "null"], "description": "Accepted, and without effect."},
        **OWN_OPTIONS,
    },
    ("input", "questions"),
)
BODY["examples"] = [
    {
        "input": "My card was charged twice for one order.",
        "questions": [
            {"type": "predicate", "name": "urgent", "instructions": "Is this urgent?"},
            {
                "type": "choice",
                "name": "team",
                "instructions": "Which team should handle it?",
                "choices": [{"value": "billing", "description": "payments and refunds"}, {"value": "shipping"}],
            },
        ],
    }
]
ANSWER = answer_schema(
    "OpenAIDecision",
    {
        "model": TEXT,
        "answers": {
            "type": "array",
            "items": answer_schema(
                "OpenAIDecisionAnswer",
                {
                    "type": {"enum": ["predicate", "choice", "score"]},
                    "name": NAME,
                    "probability": PROBABILITY,
                    "choice": VALUE,
                    "score": NUMBER,
                    "confidence": PROBABILITY,
                    "probabilities": {"type": "array", "items": {"type": "object"}},
                    "label_mass": PROBABILITY,
                    "spread": PROBABILITY,
                },
                optional=("probability", "choice", "score", "confidence", "probabilities", "spread"),
            ),
        },
        "usage": answer_schema(
            "OpenAIDecisionUsage",
            {
                "input_tokens": COUNT,
                "input_tokens_details": {"type": "object"},
                "output_tokens": COUNT,
                "output_tokens_details": {"type": "object"},
                "total_tokens": COUNT,
            },
        ),
        **ABOUT,
    },
)


def parse(body: dict[str, Any], served_names: tuple[str, ...], priority: int) -> DecisionCall:
    fields = Fields.of(body, BODY)
    for name in ("prompt_cache_key", "safety_identifier"):
        fields.text(name)
    _check_cache_options(fields.get("prompt_cache_options"))
    given = fields.get("input")
    if given is None:
        raise RequestError(
            "missing_input", "input is required: a text or a list of messages (state, in other dialects)", "input"
        )
    if not isinstance(given, str | list):
        raise RequestError("invalid_input", f"input must be a text or a list; got {shown(given)}", "input")
    questions = fields.get("questions")
    if not isinstance(questions, list) or not questions:
        raise wrong("questions", "questions must be a list of at least one question")
    request = DecisionRequest(
        state=given,
        state_name="input",
        questions=tuple(_question(one, f"questions[{i}]") for i, one in enumerate(questions)),
        permutations=permutations_of(fields),
        calibrated=fields.flag("calibrated", True),
    )
    return DecisionCall("openai", request, fields.model(served_names), fields.priority(priority), answer)


def _check_cache_options(value: Any) -> None:
    if value is None:
        return
    known = {"mode": ("implicit", "explicit", None), "ttl": ("30m", None)}
    if not isinstance(value, dict) or any(name not in known or value[name] not in known[name] for name in value):
        message = "prompt_cache_options may have mode (implicit or explicit) and ttl (30m)"
        raise RequestError("invalid_prompt_cache_options", message, "prompt_cache_options")


def _question(value: Any, path: str) -> Question:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in ("predicate", *OPTIONS):
        raise wrong_type(value, path, ("predicate", *OPTIONS))
    listed, named = OPTIONS.get(kind, ("", ""))
    wanted = ("instructions", *([listed] if listed else []))
    given = members(value, path, ("type", "name", *wanted), wanted)
    name = given.get("name")
    if name is not None and not isinstance(name, str):
        raise wrong(f"{path}.name", f"{path}.name must be a text")
    instructions = _instructions(given["instructions"], f"{path}.instructions")
    if not listed:
        return Question.predicate(instructions, name=name)
    options = given[listed]
    least = 2 if kind == "choice" else 1
    if not isinstance(options, list) or not least <= len(options) <= MAX_OPTIONS:
        raise wrong(f"{path}.{listed}", f"{path}.{listed} must be a list of {least} to {MAX_OPTIONS}")
    read = tuple(_option(one, f"{path}.{listed}[{i}]", named) for i, one in enumerate(options))
    return Question(kind, instructions, read, name)


def _instructions(value: Any, path: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise wrong(path, f"{path} must be a text or a list of parts")
    return "\n".join(part_text(part, f"{path}[{i}]") for i, part in enumerate(value))


def _option(value: Any, path: str, named: str) -> Option:
    given = members(value, path, (named, "description"), (named,))
    kinds = (str, bool) if named == "value" else (str,)
    if not isinstance(given[named], kinds):
        raise wrong(f"{path}.{named}", f"{path}.{named} must be a text{' or a boolean' if len(kinds) > 1 else ''}")
    description = given.get("description")
    if description is not None and not isinstance(description, str):
        raise wrong(f"{path}.description", f"{path}.description must be a text")
    return Option(given[named], description)


def answer(call: DecisionCall, plan: DecisionPlan, result: DecisionResult) -> dict[str, Any]:
    tokens, cached = result.usage.prompt_tokens, result.usage.cached_tokens
    context: Any = plan.score_request.query
    return {
        "model": call.model,
        "answers": [_answer(one) for one in result.answers[0]],
        "usage": {
            "input_tokens": tokens,
            "input_tokens_details": {
                "cached_tokens": cached,
                "cache_write_tokens": max(0, len(context) - cached),
            },
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens,
        },
        **about(result),
    }


def _answer(one: DecisionAnswer) -> dict[str, Any]:
    out: dict[str, Any] = {"type": one.type, "name": one.name, "label_mass": one.label_mass}
    if one.spread is not None:
        out["spread"] = one.spread
    if one.type == "predicate":
        return {**out, "probability": one.probability}
    pairs = list(zip(one.values, one.probabilities, strict=True))
    if one.type == "choice":
        listed = [{"value": value, "probability": p} for value, p in pairs]
        return {**out, "choice": one.choice, "confidence": one.confidence, "probabilities": listed}
    levels = [{"label": label, "value": level, "probability": p} for level, (label, p) in enumerate(pairs)]
    return {**out, "score": one.score, "confidence": one.confidence, "probabilities": levels}
