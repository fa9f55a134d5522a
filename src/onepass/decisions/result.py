"""Answers to typed questions: `DecisionAnswer` with a probability per option, and `DecisionResult` for a whole request.

`confidence` is (n·max − 1)/(n − 1) over the n options: 0 where all are equally likely, 1 where one is certain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onepass.api import Timings, Usage
from onepass.decisions.questions import QuestionType

CONFIDENCE = "(n*max-1)/(n-1)"  # as answers name it
LOW_LABEL_MASS = 0.5  # below it the model would rather have said something that is no option


@dataclass(frozen=True)
class DecisionAnswer:
    """One question answered. `values` are the options in the question's order; a predicate's are True and False, a
    score's the labels of its levels. `label_mass` is how much of the vocabulary's probability the options' labels hold.
    `spread` is the largest difference that the order of the options made to a probability (with permutations)."""

    name: str | None
    type: QuestionType
    values: tuple[str | bool, ...]
    probabilities: tuple[float, ...]
    label_mass: float
    spread: float | None = None

    @property
    def probability(self) -> float:
        """Of yes for a predicate, of the likeliest option otherwise."""
        return self.probabilities[0] if self.type == "predicate" else max(self.probabilities)

    @property
    def choice(self) -> str | bool:
        """The likeliest option; of equally likely ones the first."""
        return self.values[self.probabilities.index(max(self.probabilities))]

    @property
    def score(self) -> float:
        """The expected level, counted from 0."""
        return sum(level * p for level, p in enumerate(self.probabilities))

    @property
    def confidence(self) -> float:
        count = len(self.probabilities)
        return 1.0 if count == 1 else min(1.0, max(0.0, (count * max(self.probabilities) - 1) / (count - 1)))

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {"name": self.name, "type": self.type}
        if self.type == "predicate":
            out["probability"] = self.probability
        else:
            out["choice"] = self.choice
        if self.type == "score":
            out["score"] = self.score
        out |= {
            "confidence": self.confidence,
            "probabilities": [
                {"value": value, "probability": p} for value, p in zip(self.values, self.probabilities, strict=True)
            ],
            "label_mass": self.label_mass,
        }
        return out if self.spread is None else {**out, "spread": self.spread}


@dataclass(frozen=True)
class DecisionResult:
    """`answers` has a row per candidate with an answer per question, in their order; without candidates it has one row.
    `calibration` names what the probabilities were calibrated with, None for the model's own."""

    answers: tuple[tuple[DecisionAnswer, ...], ...]
    model: str
    usage: Usage
    timings: Timings
    mode: str
    reason: str
    calibration: str | None
    candidates: tuple[str, ...] | None = None
    num_reads: int = 0  # prompts read: questions times candidates times rotations

    def __len__(self) -> int:
        return len(self.answers[0])

    def __getitem__(self, key: int | str) -> DecisionAnswer:
        """An answer by the place or the name of its question (of the first candidate, where there are several)."""
        return answer_in(self.answers[0], key)

    def of(self, candidate: int, key: int | str) -> DecisionAnswer:
        return answer_in(self.answers[candidate], key)

    @property
    def warnings(self) -> list[str]:
        """Questions whose options the model hardly meant to answer with."""
        low = [
            (answer.name or f"question {index}", answer.label_mass)
            for row in self.answers
            for index, answer in enumerate(row)
            if answer.label_mass < LOW_LABEL_MASS
        ]
        least: dict[str, float] = {}
        for name, mass in low:
            least[name] = min(mass, least.get(name, 1.0))
        return [
            f"{name}: the labels of its options hold {mass:.1%} of the model's probability, less than "
            f"{LOW_LABEL_MASS:.0%}; the model would rather answer with something else"
            for name, mass in least.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, ready for JSON."""
        rows = [[answer.to_dict() for answer in row] for row in self.answers]
        return {
            "object": "decisions",
            "model": self.model,
            "answers": rows[0] if self.candidates is None else rows,
            "calibration": self.calibration,
            "confidence_definition": CONFIDENCE,
            "warnings": self.warnings,
            "mode": self.mode,
            "reason": self.reason,
            "num_reads": self.num_reads,
            "usage": {
                "prompt_tokens": self.usage.prompt_tokens,
                "total_tokens": self.usage.total_tokens,
                "cached_tokens": self.usage.cached_tokens,
                "computed_tokens": self.usage.computed_tokens,
            },
            "timings": vars(self.timings).copy(),
        }


def answer_in(row: Sequence[DecisionAnswer], key: int | str) -> DecisionAnswer:
    if isinstance(key, int):
        return row[key]
    named = next((answer for answer in row if answer.name == key), None)
    if named is None:
        raise KeyError(key)
    return named
