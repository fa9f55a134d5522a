"""Typed questions over HTTP: a seeded, endless stream of distinct states, posted to `/v1/decisions` as text.

Sizes are those of the workload: tokens of the state, of each candidate and of each question's own words; what the
prompt puts around them comes on top, and is in the answer's usage. Answers are read by `decision_answer`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import orjson

from onepass.bench.online.requests import KNOWN_BY, Labels, MixPart, PreparedRequest
from onepass.bench.online.text import English

DECISIONS = "/v1/decisions"


@dataclass(frozen=True)
class DecisionRequests:
    """All questions are predicates. With branches in the shape, its items are candidates."""

    share: MixPart
    english: English
    seed: int = 0
    labels: Labels = field(default_factory=Labels)

    @property
    def name(self) -> str:
        return self.share.name

    @property
    def path(self) -> str:
        return DECISIONS

    @property
    def num_decisions(self) -> int:
        return self.share.shape.items * max(1, self.share.shape.branches)

    @property
    def checksum(self) -> str:
        """sha256 of the first requests."""
        first = [self._fields(number) for number in range(KNOWN_BY)]
        return hashlib.sha256(orjson.dumps([self.name, first])).hexdigest()

    def prepare(self, number: int) -> PreparedRequest:
        return PreparedRequest(number, self.name, self.num_decisions, orjson.dumps(self._fields(number)), DECISIONS)

    def serial(self, number: int, items: Sequence[int]) -> bytes:
        """Of a grid the whole again; else the questions that are asked for."""
        fields = self._fields(number)
        if not self.share.shape.branches:
            fields["questions"] = [fields["questions"][item] for item in items]
        return orjson.dumps({**fields, "mode": "serial"})

    def describe(self) -> dict[str, Any]:
        shape = self.share.shape
        return {
            "name": self.name, "kind": "text", "checksum": self.checksum, "seed": self.seed, "cached": False,
            "requests": 1, "in_flight": 1, "query_tokens": shape.query, "items": self.num_decisions,
            "item_tokens": {"min": shape.shortest, "max": shape.longest},
            "tokens": shape.query + shape.items * (shape.item_tokens + shape.branches * shape.branch_tokens),
        }  # fmt: skip

    def _fields(self, number: int) -> dict[str, Any]:
        shape, random = self.share.shape, Random(f"decisions {self.seed} {number}")

        def text(tokens: int) -> str:
            return self.english.text(random, tokens).strip()

        def item() -> str:
            return text(random.randint(shape.shortest, shape.longest))

        fields: dict[str, Any] = {"state": text(shape.query), "calibrated": False}
        if not shape.branches:
            return {**fields, "questions": [_predicate(item()) for _ in range(shape.items)]}
        questions = [_predicate(text(shape.branch_tokens)) for _ in range(shape.branches)]
        return {**fields, "questions": questions, "candidates": [item() for _ in range(shape.items)]}


def _predicate(instructions: str) -> dict[str, str]:
    return {"type": "predicate", "instructions": instructions}
