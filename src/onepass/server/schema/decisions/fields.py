"""What the dialects of typed decisions share: the call that a body becomes, the options of our own that each takes, and
what every answer tells besides its dialect's members.

A dialect is a file with `is_…`, `parse` and `answer`; planning and running a call is `server.decide`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onepass.decisions.decider import DecisionPlan
from onepass.decisions.questions import MAX_OPTIONS, DecisionRequest
from onepass.decisions.result import CONFIDENCE, DecisionResult
from onepass.errors import RequestError, shown
from onepass.server.schema.fields import PRIORITY, TEXT, Fields, Schema, flag

JSON_TEXT: Schema = {"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "array"}]}
OWN_OPTIONS: dict[str, Schema] = {
    "permutations": {
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": MAX_OPTIONS,
        "default": 1,
        "description": "Average over so many rotations of the options; each is one more read.",
    },
    "calibrated": flag("Apply the calibration of the served model, if it has one.", True),
    "priority": PRIORITY,
}
PROBABILITY: Schema = {"type": "number", "minimum": 0, "maximum": 1}
ABOUT: dict[str, Schema] = {
    "calibration": {"type": ["string", "null"], "description": "What the probabilities were calibrated with."},
    "confidence_definition": {**TEXT, "description": "n is the number of options, max the largest probability."},
    "warnings": {"type": "array", "items": TEXT},
}


@dataclass(frozen=True)
class DecisionCall:
    """A body of any dialect, and the function that makes its answer."""

    dialect: str
    request: DecisionRequest
    model: str
    priority: int
    answer: Callable[["DecisionCall", DecisionPlan, DecisionResult], dict[str, Any]]
    return_prompt_token_ids: bool = False
    return_prompt: bool = False  # the answer has the prompt of every read


def permutations_of(fields: Fields) -> int:
    return fields.whole("permutations", 1, MAX_OPTIONS) or 1


def about(result: DecisionResult) -> dict[str, Any]:
    return {"calibration": result.calibration, "confidence_definition": CONFIDENCE, "warnings": result.warnings}


def members(value: Any, path: str, known: tuple[str, ...], required: tuple[str, ...]) -> dict[str, Any]:
    """An object with these members; null is the same as leaving one out."""
    if not isinstance(value, dict):
        raise wrong(path, f"{path} must be an object; got {shown(value)}")
    unknown = [name for name in value if name not in known]
    if unknown:
        name = unknown[0][:80]
        raise wrong(f"{path}.{name}", f"{path} has the unknown member {name!r}; known: {', '.join(known)}")
    missing = [name for name in required if value.get(name) is None]
    if missing:
        raise wrong(f"{path}.{missing[0]}", f"{path}.{missing[0]} is required")
    return value


def wrong_type(value: Any, path: str, types: tuple[str, ...]) -> RequestError:
    """Why `value` is no question of one of these types."""
    if not isinstance(value, dict):
        return wrong(path, f"{path} must be an object with a type: {', '.join(types)}; got {shown(value)}")
    if value.get("type") is None:
        return wrong(f"{path}.type", f"{path}.type is required: {', '.join(types)}")
    return wrong(f"{path}.type", f"{path}.type must be one of {', '.join(types)}; got {shown(value['type'])}")


def wrong(path: str, message: str) -> RequestError:
    return RequestError("invalid_questions", message[:1000], path)
