"""SGLang's decisions: `input`, and a list of questions with an `id` each; answers by id, with the labels' mass."""

import json
from collections.abc import Mapping
from typing import Any

from onepass.decisions.decider import DecisionPlan
from onepass.decisions.question_format import questions_of, text_of_json
from onepass.decisions.questions import MAX_OPTIONS, MAX_QUESTIONS, DecisionRequest, Option, Question
from onepass.decisions.result import DecisionAnswer, DecisionResult
from onepass.errors import RequestError, shown
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
from onepass.server.schema.fields import MODEL, TEXT, Fields, answer_schema, body_schema, flag
from onepass.server.schema.usage import USAGE

OPTIONS = {"choice": ("options",), "score": ("levels",), "yes_no": ("yes", "no")}
QUESTION = body_schema(
    "SGLangQuestion",
    {
        "id": TEXT,
        "type": {"enum": [*OPTIONS]},
        "question": JSON_TEXT,
        "options": {"type": "array", "items": {"type": "object"}, "minItems": 2, "maxItems": MAX_OPTIONS},
        "levels": {"type": "array", "items": JSON_TEXT, "minItems": 2, "maxItems": MAX_OPTIONS},
        "yes": JSON_TEXT,
        "no": JSON_TEXT,
    },
    ("id", "type", "question"),
)
BODY = body_schema(
    "SGLangDecisionBody",
    {
        "model": MODEL,
        "input": JSON_TEXT,
        "questions": {"type": "array", "items": QUESTION, "minItems": 1, "maxItems": MAX_QUESTIONS},
        "images": {"type": ["array", "null"], "maxItems": 0, "description": "Images are not supported."},
        "temperature": {"type": ["number", "null"], "exclusiveMinimum": 0, "default": 1.0},
        "chat_template_kwargs": {"type": ["object", "null"], "description": "Thinking is off; nothing else is taken."},
        "return_prompt_token_ids": flag("Give the token ids of each question's prompt and labels.", False),
        **OWN_OPTIONS,
    },
    ("input", "questions"),
)
ANSWER = answer_schema(
    "SGLangDecision",
    {
        "model": TEXT,
        "answers": {"type": "object", "additionalProperties": {"type": "object"}},
        "usage": USAGE,
        **ABOUT,
    },
)


def is_sglang(body: Mapping[str, Any]) -> bool:
    questions = body.get("questions")
    return isinstance(questions, list) and any(isinstance(one, dict) and "id" in one for one in questions)


def parse(body: dict[str, Any], served_names: tuple[str, ...], priority: int) -> DecisionCall:
    fields = Fields.of(body, BODY)
    if fields.get("images"):
        raise RequestError("unsupported_content", "images are not supported: this model reads text and JSON", "images")
    thinking = fields.get("chat_template_kwargs")
    if thinking is not None and not (isinstance(thinking, dict) and all(one is False for one in thinking.values())):
        message = "chat_template_kwargs may only turn thinking off, which it is"
        raise RequestError("invalid_chat_template_kwargs", message, "chat_template_kwargs")
    if fields.get("input") is None:
        raise RequestError("missing_input", "input is required: a text, an object or a list", "input")
    request = DecisionRequest(
        state=fields.get("input"),
        state_name="input",
        questions=tuple(_question(one, f"questions[{i}]") for i, one in enumerate(fields.get("questions"))),
        permutations=permutations_of(fields),
        calibrated=fields.flag("calibrated", True),
        temperature=fields.get("temperature", 1.0),
    )
    ids = fields.flag("return_prompt_token_ids")
    return DecisionCall("sglang", request, fields.model(served_names), fields.priority(priority), answer, ids)


def _question(value: Any, path: str) -> Question:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in OPTIONS:
        raise wrong_type(value, path, tuple(OPTIONS))
    required = OPTIONS[kind] if kind != "yes_no" else ()
    given = members(value, path, ("id", "type", "question", *OPTIONS[kind]), ("id", "question", *required))
    if kind == "score":
        levels = given["levels"]
        if not isinstance(levels, list):
            raise wrong(f"{path}.levels", f"{path}.levels must be a list")
        given = {**given, "levels": [_level(level, f"{path}.levels[{i}]") for i, level in enumerate(levels)]}
    if not isinstance(given["id"], str):
        raise wrong(f"{path}.id", f"{path}.id must be a string; got {shown(given['id'])}")
    (question,) = questions_of([given])
    if kind != "yes_no" and len(question.options) < 2:
        raise wrong(f"{path}.{OPTIONS[kind][0]}", f"{path}.{OPTIONS[kind][0]} must have at least two entries")
    texts = [option.text for option in question.options]
    twice = next((text for i, text in enumerate(texts) if text in texts[:i]), None)
    if twice is not None:  # the answer has them as keys
        raise wrong(path, f"the options of {path} must be distinct as texts; {twice!r} is given twice")
    return question


def _level(value: Any, path: str) -> str:
    """Numbers are levels too; objects and lists are JSON."""
    if isinstance(value, int | float):
        return json.dumps(value)
    return text_of_json(value, path)


def answer(call: DecisionCall, plan: DecisionPlan, result: DecisionResult) -> dict[str, Any]:
    usage = result.usage
    return {
        "model": call.model,
        "answers": {
            str(one.name): _answer(one) | _prompt(call, plan, index) for index, one in enumerate(result.answers[0])
        },
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "total_tokens": usage.prompt_tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        },
        **about(result),
    }


def _answer(one: DecisionAnswer) -> dict[str, Any]:
    names = (
        [str(level) for level in range(len(one.values))]
        if one.type == "score"
        else [Option(v).text for v in one.values]
    )
    names = ["yes", "no"] if one.type == "predicate" else names
    out: dict[str, Any] = {"type": "yes_no" if one.type == "predicate" else one.type}
    if one.type == "choice":
        out["choice"] = one.choice
    if one.type == "score":
        out["score"] = one.score
    out |= {
        "probabilities": dict(zip(names, one.probabilities, strict=True)),
        "confidence": one.confidence,
        "label_mass": one.label_mass,
    }
    return out if one.spread is None else {**out, "spread": one.spread}


def _prompt(call: DecisionCall, plan: DecisionPlan, question: int) -> dict[str, Any]:
    """Of the first read, which has the options in the given order."""
    if not call.return_prompt_token_ids:
        return {}
    scored: Any = plan.score_request
    read = next(i for i, one in enumerate(plan.reads) if one.question == question)
    return {
        "prompt_token_ids": [*scored.query, *scored.items[read]],
        "label_token_ids": list(scored.label_token_ids[read]),
    }
