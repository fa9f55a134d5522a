"""System One: `state`, and an object of questions by key; answers under the same keys. TypeSafe's, which others serve.

A wrong body is 422 with FastAPI's list of places, as the clients read it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from onepass.decisions.decider import DecisionPlan
from onepass.decisions.question_format import (
    instructions_of,
    listed_options,
    predicate_options,
    text_of_json,
)
from onepass.decisions.questions import MAX_OPTIONS, MAX_QUESTIONS, DecisionRequest, Option, Question, QuestionType
from onepass.decisions.result import DecisionAnswer, DecisionResult
from onepass.decisions.state import is_conversation, state_of
from onepass.errors import RequestError
from onepass.server.http.errors import ErrorResponse
from onepass.server.schema.decisions.fields import (
    ABOUT,
    JSON_TEXT,
    OWN_OPTIONS,
    DecisionCall,
    about,
    members,
    permutations_of,
    wrong,
    wrong_type,
)
from onepass.server.schema.fields import COUNT, MODEL, TEXT, Fields, Schema, answer_schema, body_schema

QUESTIONS = "questions."
TYPES: dict[str, QuestionType] = {"noul": "predicate", "choice": "choice", "score": "score"}
OPTIONAL_TEXT: Schema = {"anyOf": [*JSON_TEXT["anyOf"], {"type": "null"}]}
QUESTION = body_schema(
    "SystemOneQuestion",
    {
        "type": {"enum": [*TYPES]},
        "instructions": OPTIONAL_TEXT,
        "criteria": {
            "anyOf": [
                {"type": "object", "maxProperties": MAX_OPTIONS},
                {"type": "array", "maxItems": MAX_OPTIONS},
                {"type": "null"},
            ],
            "description": "choice: descriptions by name; score: the levels from 0 up; noul: true and false.",
        },
    },
    ("type",),
)
BODY = body_schema(
    "SystemOneBody",
    {
        "model": MODEL,
        "state": {**JSON_TEXT, "description": "What the questions are about: a text, messages or JSON."},
        "questions": {
            "type": "object",
            "additionalProperties": QUESTION,
            "minProperties": 1,
            "maxProperties": MAX_QUESTIONS,
        },
        "instructions": {**OPTIONAL_TEXT, "description": "Placed before the state, as vLLM takes it."},
        "assets": {"enum": [None], "description": "Images are not supported."},
        "images": {"enum": [None], "description": "Images are not supported."},
        "chat_template_kwargs": {"type": ["object", "null"], "description": "Thinking is off; nothing else is taken."},
        **OWN_OPTIONS,
    },
    ("state", "questions"),
)
BODY["examples"] = [
    {
        "state": {"ticket": "My card was charged twice for one order."},
        "questions": {
            "urgent": {"type": "noul", "instructions": "Is this urgent?"},
            "tone": {"type": "score", "instructions": "How upset?", "criteria": ["calm", "annoyed", "furious"]},
        },
    }
]
ANSWER = answer_schema(
    "SystemOneDecision",
    {
        "model": TEXT,
        "answers": {"type": "object", "additionalProperties": {"type": "object"}},
        "usage": answer_schema(
            "SystemOneUsage", {"input_tokens": COUNT, "output_tokens": COUNT, "cached_tokens": COUNT}
        ),
        "diagnostics": {"type": "object", "description": "By key: label_mass, and spread with permutations."},
        **ABOUT,
    },
)
INVALID = answer_schema(
    "SystemOneError",
    {
        "detail": {
            "type": "array",
            "items": answer_schema("Place", {"loc": {"type": "array"}, "msg": TEXT, "type": TEXT}),
        }
    },
)


def is_systemone(body: Mapping[str, Any]) -> bool:
    return isinstance(body.get("questions"), Mapping)


def parse(body: dict[str, Any], served_names: tuple[str, ...], priority: int) -> DecisionCall:
    fields = Fields.of(body, BODY)
    for media in ("assets", "images"):
        if fields.get(media) is not None:
            message = f"{media} are not supported: this model reads text and JSON, no images"
            raise RequestError("unsupported_content", message, media)
    thinking = fields.get("chat_template_kwargs")
    if thinking is not None and not (isinstance(thinking, dict) and all(one is False for one in thinking.values())):
        message = "chat_template_kwargs may only turn thinking off, which it is"
        raise RequestError("invalid_chat_template_kwargs", message, "chat_template_kwargs")
    if fields.get("state") is None:
        raise RequestError("missing_state", "state is required: a text, an object or a list", "state")
    questions = fields.get("questions")
    if not isinstance(questions, dict) or not questions:
        raise wrong("questions", "questions must be an object with at least one question")
    request = DecisionRequest(
        state=_with_instructions(fields.get("state"), fields.get("instructions")),
        questions=tuple(_question(one, key) for key, one in questions.items()),
        permutations=permutations_of(fields),
        calibrated=fields.flag("calibrated", True),
    )
    return DecisionCall("systemone", request, fields.model(served_names), fields.priority(priority), answer)


def _with_instructions(state: Any, instructions: Any) -> Any:
    if instructions is None:
        return state
    system = {"role": "system", "content": text_of_json(instructions, "instructions")}
    if is_conversation(state):
        return [system, *state]
    own = state_of(state).text  # with the place that the caller knows, if it is wrong
    return [system, {"role": "user", "content": own}]


def _question(value: Any, key: str) -> Question:
    path = f"questions.{key}"
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "box":
        message = f"{path}: a box is a place in an image, and images are not supported"
        raise RequestError("unsupported_question", message, f"{path}.type")
    if not isinstance(kind, str) or kind not in TYPES:
        raise wrong_type(value, path, tuple(TYPES))
    given = members(value, path, ("type", "instructions", "criteria"), ("criteria",) if kind != "noul" else ())
    instructions = instructions_of(given.get("instructions"), TYPES[kind], path)
    return Question(TYPES[kind], instructions, _options(kind, given.get("criteria"), path), key)


def _options(kind: str, criteria: Any, path: str) -> tuple[Option, ...]:
    """Levels may be objects or repeat one another: their numbers are their values."""
    place = f"{path}.criteria"
    if kind == "noul":
        return predicate_options({}, criteria, path)
    if not isinstance(criteria, dict if kind == "choice" else list) or not 1 <= len(criteria) <= MAX_OPTIONS:
        wanted = "an object" if kind == "choice" else "a list"
        raise wrong(place, f"{place} must be {wanted} of 1 to {MAX_OPTIONS}")
    if kind == "choice":
        return listed_options(criteria, place)
    texts = [instructions_of(level, "score", f"{place}[{i}]") for i, level in enumerate(criteria)]
    return tuple(Option(str(level), text) for level, text in enumerate(texts))


def answer(call: DecisionCall, plan: DecisionPlan, result: DecisionResult) -> dict[str, Any]:
    named = [
        (str(one.name), one, question) for one, question in zip(result.answers[0], plan.request.questions, strict=True)
    ]
    return {
        "model": call.model,
        "answers": {key: _answer(one, question) for key, one, question in named},
        "usage": {
            "input_tokens": result.usage.prompt_tokens,
            "output_tokens": 0,
            "cached_tokens": result.usage.cached_tokens,
        },
        "diagnostics": {
            key: {"label_mass": one.label_mass} | ({} if one.spread is None else {"spread": one.spread})
            for key, one, _ in named
        },
        **about(result),
    }


def _answer(one: DecisionAnswer, question: Question) -> dict[str, Any]:
    if one.type == "predicate":
        return {"type": "noul", "noul": one.probability}
    probabilities = {str(value): p for value, p in zip(one.values, one.probabilities, strict=True)}
    rest = {"confidence": one.confidence, "probabilities": probabilities}
    if one.type == "choice":
        return {"type": "choice", "choice": one.choice, **rest}
    legend = {str(option.value): option.description for option in question.options}
    return {"type": "score", "score": one.score, "legend": legend, **rest}


def error_body(fault: ErrorResponse, keys: Sequence[str] = ()) -> dict[str, Any]:
    """FastAPI's form for a wrong body, and the usual one for all else. `keys` are the questions', which may hold dots
    and brackets of their own."""
    if fault.status != 422:
        return fault.body()
    loc = ["body", *_places(fault.param or "", keys)]
    return {**fault.body(), "detail": [{"loc": loc, "msg": fault.shown, "type": fault.code}]}


def _places(param: str, keys: Sequence[str]) -> list[str | int]:
    """`questions.team.criteria[2]` as a list: members are texts, places in a list numbers."""
    beginning: list[str | int] = []
    rest = param
    if rest.startswith(QUESTIONS):
        own = [key for key in keys if re.match(re.escape(QUESTIONS + key) + r"($|[.\[])", rest)]
        if own:
            key = max(own, key=len)
            beginning, rest = ["questions", key], rest.removeprefix(QUESTIONS + key)
    parts = re.findall(r"\[(\d+)\]|([^.\[\]]+)", rest)
    return [*beginning, *(int(number) if number else member for number, member in parts)]
