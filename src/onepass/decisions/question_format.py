"""Questions as plain data, such as YAML, JSON or a dict, into `Question`s.

Our own form takes the words of all three APIs for the same thing: `predicate`, `yes_no` and `noul`; `choices`,
`options` and `criteria`. The HTTP dialects, which are strict, are the server's.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from onepass.decisions.questions import Option, Question, QuestionType
from onepass.errors import RequestError, shown

TYPES: dict[str, QuestionType] = {
    "predicate": "predicate",
    "yes_no": "predicate",
    "noul": "predicate",
    "choice": "choice",
    "score": "score",
}
OPTION_MEMBERS: dict[QuestionType, tuple[str, ...]] = {
    "choice": ("choices", "options", "criteria"),
    "score": ("levels", "criteria"),
    "predicate": ("criteria",),
}
DESCRIPTION_MEMBERS: dict[QuestionType, tuple[str, ...]] = {
    "predicate": ("yes", "no", "true", "false"),
    "choice": (),
    "score": (),
}
NAME_MEMBERS = ("name", "id")
INSTRUCTION_MEMBERS = ("instructions", "question")
DEFAULT_INSTRUCTIONS: dict[QuestionType, str] = {
    "predicate": "Is this true?",
    "choice": "Which option fits best?",
    "score": "Which level fits best?",
}


def questions_of(value: Any) -> tuple[Question, ...]:
    """A list of questions, or an object with each question under its name; a question is a `Question` or plain data."""
    if isinstance(value, Mapping):
        return tuple(_question(question, f"questions.{name}", str(name)) for name, question in value.items())
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _wrong("questions", f"questions must be a list or an object; got {shown(value)}")
    return tuple(_question(question, f"questions[{index}]", None) for index, question in enumerate(value))


def candidates_of(value: Any) -> tuple[str, ...] | None:
    """A list of texts; one text would be taken for its letters."""
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence):
        message = f"candidates must be a list of texts; got {shown(value)}"
        raise RequestError("invalid_candidates", message, "candidates")
    return tuple(value)


def _question(value: Any, path: str, name: str | None) -> Question:
    if isinstance(value, Question):
        if name is None or value.name is not None:
            return value
        return Question(value.type, value.instructions, value.options, name)
    if not isinstance(value, Mapping):
        raise _wrong(path, f"{path} must be an object; got {shown(value)}")
    given = value.get("type")
    if given == "box":
        raise RequestError(
            "unsupported_question", f"{path}: a box is a place in an image; images are not supported", path
        )
    if given is None:
        raise _wrong(f"{path}.type", f"{path}.type is required: one of {', '.join(TYPES)}")
    if not isinstance(given, str) or given not in TYPES:
        raise _wrong(f"{path}.type", f"{path}.type must be one of {', '.join(TYPES)}; got {shown(given)}")
    kind = TYPES[given]
    known = ("type", *NAME_MEMBERS, *INSTRUCTION_MEMBERS, *OPTION_MEMBERS[kind], *DESCRIPTION_MEMBERS[kind])
    unknown = [str(member) for member in value if member not in known]
    if unknown:
        listed = f"{', '.join(unknown[:8])}; a {given} takes {', '.join(known)}"
        raise _wrong(f"{path}.{unknown[0]}", f"{path} has unknown members: {listed}")
    instructions = instructions_of(_one_of(value, INSTRUCTION_MEMBERS, path), kind, path)
    return Question(kind, instructions, _options(value, kind, OPTION_MEMBERS[kind], path), _name(value, name, path))


def _one_of(value: Mapping[str, Any], members: Sequence[str], path: str) -> Any:
    """The one member among several of the same meaning; None where there is none."""
    given = [member for member in members if value.get(member) is not None]
    if len(given) > 1:
        raise _wrong(f"{path}.{given[1]}", f"{path} must have one of {', '.join(given)}, not both")
    return value[given[0]] if given else None


def _name(value: Mapping[str, Any], key: str | None, path: str) -> str | None:
    """`key` is the question's name where questions are an object."""
    own = _one_of(value, NAME_MEMBERS, path)
    if own is None:
        return key
    member = next(member for member in NAME_MEMBERS if value.get(member) is not None)
    if not isinstance(own, str):
        raise _wrong(f"{path}.{member}", f"{path}.{member} must be a string; got {shown(own)}")
    if key is not None and own != key:
        raise _wrong(f"{path}.{member}", f"{path} has another {member} than its key: {shown(own)}")
    return own


def instructions_of(value: Any, kind: QuestionType, path: str) -> str:
    """Text, or JSON as compact text; left out, a question of that type."""
    if value is None:
        return DEFAULT_INSTRUCTIONS[kind]
    return text_of_json(value, f"{path}.instructions")


def text_of_json(value: Any, path: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping | list | tuple):
        raise _wrong(path, f"{path} must be a text, an object or a list; got {shown(value)}")
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise _wrong(path, f"{path} must be JSON; {error}") from error


def _options(value: Mapping[str, Any], kind: QuestionType, members: Sequence[str], path: str) -> tuple[Option, ...]:
    given = [member for member in members if value.get(member) is not None]
    if kind == "predicate":
        return predicate_options(value, value.get("criteria"), path)
    if len(given) != 1:
        raise _wrong(path, f"{path} must have one of {', '.join(members)}; got {', '.join(given) or 'none'}")
    return listed_options(value[given[0]], f"{path}.{given[0]}")


def predicate_options(value: Mapping[str, Any], criteria: Any, path: str) -> tuple[Option, ...]:
    """What counts as yes and as no: `true` and `false` within `criteria`, or `yes` and `no` beside the question."""
    if criteria is not None and (not isinstance(criteria, Mapping) or not set(criteria) <= {"true", "false"}):
        raise _wrong(
            f"{path}.criteria", f"{path}.criteria must be an object with true and false; got {shown(criteria)}"
        )
    yes, no = (
        _description({"criteria": (criteria or {}).get(key), key: value.get(key), word: value.get(word)}, path)
        for key, word in (("true", "yes"), ("false", "no"))
    )
    return Option(True, yes), Option(False, no)


def _description(said: Mapping[str, Any], path: str) -> str | None:
    text = _one_of(said, tuple(said), path)
    member = next((member for member in said if said[member] is not None), "")
    return None if text is None else text_of_json(text, f"{path}.{member}")


def listed_options(value: Any, path: str) -> tuple[Option, ...]:
    """An object from value to description, or a list of values or of objects with a description."""
    if isinstance(value, Mapping):
        return tuple(
            Option(str(key), None if text is None else text_of_json(text, f"{path}.{key}"))
            for key, text in value.items()
        )
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _wrong(path, f"{path} must be a list or an object; got {shown(value)}")
    return tuple(_option(entry, f"{path}[{index}]") for index, entry in enumerate(value))


def _option(entry: Any, path: str) -> Option:
    if isinstance(entry, str | bool):
        return Option(entry)
    if isinstance(entry, Mapping):
        named = _one_of(entry, ("value", "label", "name"), path)
        description = entry.get("description")
        if isinstance(named, str | bool) and set(entry) <= {"value", "label", "name", "description"}:
            return Option(named, None if description is None else text_of_json(description, f"{path}.description"))
    raise _wrong(
        path, f"{path} must be a string, a boolean, or an object with value and description; got {shown(entry)}"
    )


def _wrong(param: str, message: str) -> RequestError:
    return RequestError("invalid_questions", message, param)
