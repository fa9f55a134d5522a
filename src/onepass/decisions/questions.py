"""Typed questions about a state: `Question` with its `Option`s, and `DecisionRequest`, which asks several at once.

Every mistake of a caller is a RequestError whose `param` is the path to the value. Bodies of other APIs are read by
`question_format`; the words that a model is given are `prompt`.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from onepass.api import MODES, Mode
from onepass.errors import RequestError, shown

QuestionType = Literal["predicate", "choice", "score"]
QUESTION_TYPES: tuple[QuestionType, ...] = ("predicate", "choice", "score")
MAX_QUESTIONS = 400
MAX_OPTIONS = 255
MAX_CANDIDATES = 10_000


@dataclass(frozen=True)
class Option:
    """One possible answer. A string and a boolean of the same text are different values."""

    value: str | bool
    description: str | None = None

    @property
    def text(self) -> str:
        return self.value if isinstance(self.value, str) else str(self.value).lower()


@dataclass(frozen=True)
class Question:
    """What is asked about the state, and the options of its answer: yes and no of a predicate, the choices of a choice,
    the levels of a score from the lowest to the highest."""

    type: QuestionType
    instructions: str
    options: tuple[Option, ...]
    name: str | None = None

    @classmethod
    def predicate(
        cls, instructions: str, *, name: str | None = None, true: str | None = None, false: str | None = None
    ) -> "Question":
        """Is it so? `true` and `false` say what counts as yes and as no."""
        return cls("predicate", instructions, (Option(True, true), Option(False, false)), name)

    @classmethod
    def choice(
        cls, instructions: str, choices: Sequence[str | bool] | Mapping[str, str | None], *, name: str | None = None
    ) -> "Question":
        """Which of these? A mapping gives each choice its description."""
        return cls("choice", instructions, options_of(choices), name)

    @classmethod
    def score(
        cls, instructions: str, levels: Sequence[str] | Mapping[str, str | None], *, name: str | None = None
    ) -> "Question":
        """Which level? Level i counts as i, and the score is the expectation over the levels."""
        return cls("score", instructions, options_of(levels), name)


def options_of(values: Sequence[str | bool] | Mapping[str, str | None]) -> tuple[Option, ...]:
    if isinstance(values, Mapping):
        return tuple(Option(value, description) for value, description in values.items())
    return tuple(Option(value) for value in values)


@dataclass(frozen=True, kw_only=True)
class DecisionRequest:
    """Questions about a state, which is a text, messages or JSON. With `candidates` every question is asked about each
    of them, under the same state. `permutations` averages over so many rotations of each question's options."""

    state: Any
    questions: tuple[Question, ...]
    candidates: tuple[str, ...] | None = None
    permutations: int = 1
    calibrated: bool = True
    mode: Mode = "auto"
    temperature: float = 1.0  # besides the calibration's
    state_name: str = "state"  # what errors call it

    def check(self) -> None:
        """Raises RequestError unless the questions can be asked."""
        if not 1 <= len(self.questions) <= MAX_QUESTIONS:
            raise _wrong("questions", f"questions must be 1 to {MAX_QUESTIONS}; got {len(self.questions)}")
        for index, question in enumerate(self.questions):
            check_question(question, question_path(question, index))
        names = [question.name for question in self.questions if question.name is not None]
        twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
        if twice is not None:
            raise _wrong("questions", f"the names of questions must be distinct; {twice!r} is given twice")
        _check_candidates(self.candidates)
        if not _is_count(self.permutations) or not 1 <= self.permutations <= MAX_OPTIONS:
            raise _wrong(
                "permutations",
                f"permutations must be a whole number from 1 to {MAX_OPTIONS}; got {shown(self.permutations)}",
            )
        t = self.temperature
        if isinstance(t, bool) or not isinstance(t, int | float) or not 0 < t <= sys.float_info.max:
            raise _wrong("temperature", f"temperature must be a finite number above 0; got {shown(t)}")
        if self.mode not in MODES:
            raise _wrong("mode", f"mode must be one of {', '.join(MODES)}; got {shown(self.mode)}")


def question_path(question: Question, index: int) -> str:
    return f"questions[{index}]" if question.name is None else f"questions.{question.name}"


def check_question(question: Question, path: str) -> None:
    if question.type not in QUESTION_TYPES:
        raise _wrong(f"{path}.type", f"type must be one of {', '.join(QUESTION_TYPES)}; got {shown(question.type)}")
    if not isinstance(question.instructions, str):
        raise _wrong(f"{path}.instructions", f"instructions must be a string; got {shown(question.instructions)}")
    if not 1 <= len(question.options) <= MAX_OPTIONS:
        raise _wrong(path, f"{path} must have 1 to {MAX_OPTIONS} options; got {len(question.options)}")
    described = any(option.description for option in question.options)
    if question.type == "predicate" and not question.instructions.strip() and not described:
        raise _wrong(f"{path}.instructions", f"{path} asks nothing: its instructions are empty")
    seen: set[tuple[type, str | bool]] = set()
    for index, option in enumerate(question.options):
        if not isinstance(option.value, str | bool):
            raise _wrong(f"{path}[{index}]", f"an option must be a string or a boolean; got {shown(option.value)}")
        if not option.text.strip():
            raise _wrong(f"{path}[{index}]", f"options must not be empty; option {index} of {path} is {option.value!r}")
        key = (type(option.value), option.value)
        if key in seen:
            raise _wrong(path, f"the options of {path} must be distinct; {option.value!r} is given twice")
        seen.add(key)


def _check_candidates(candidates: tuple[str, ...] | None) -> None:
    if candidates is None:
        return
    if not 1 <= len(candidates) <= MAX_CANDIDATES:
        raise _wrong("candidates", f"candidates must be 1 to {MAX_CANDIDATES:,}; got {len(candidates):,}")
    odd = next(
        (i for i, candidate in enumerate(candidates) if not isinstance(candidate, str) or not candidate.strip()), None
    )
    if odd is not None:
        raise _wrong(f"candidates[{odd}]", f"candidates must be texts that are not empty; got {shown(candidates[odd])}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong(param: str, message: str) -> RequestError:
    code = "invalid_" + param.partition(".")[0].partition("[")[0]
    return RequestError(code, message, param)
