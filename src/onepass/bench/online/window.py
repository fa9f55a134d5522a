"""What came of sending requests for a while: every answer's times, statuses, errors, and the scores of a few.

Filling it is `loops`; checking the kept scores is `check`; what it is worth as a row is `row`.
"""

import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from onepass.bench.mixed import answer_rows
from onepass.bench.online.connection import Answer
from onepass.bench.online.decision_answer import as_scores
from onepass.bench.online.requests import PreparedRequest
from onepass.bench.online.target import shown

TIMINGS = ("queue_ms", "encode_ms", "device_ms", "total_ms")
MOST_ERRORS = 20
ERROR_PAUSE = 0.1  # seconds before a client sends again


@dataclass(frozen=True)
class ScoredRequest:
    """A request that was answered with scores: seconds from when it was due, and the server's own milliseconds."""

    number: int
    part: str
    items: int
    tokens: int
    cached_tokens: int
    seconds: float
    mode: str
    timings: dict[str, float]


@dataclass
class Window:
    """`kept` are (number, what is compared of each item) of some requests, drawn evenly from all that were answered."""

    clients: int | None = None
    rate: float | None = None
    keep: int = 5
    sent: int = 0
    scored: list[ScoredRequest] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)  # 0: no answer came
    errors: list[str] = field(default_factory=list)  # the first few
    num_errors: int = 0
    retry_after: list[float | None] = field(default_factory=list)  # as it came with each 429
    kept: list[tuple[int, list[list[float]]]] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)  # seconds a request left later than it was due
    made_late: int = 0  # requests that had not been prepared
    seconds: float = 0.0  # from the first request to the last answer
    client_cpu: float = 0.0  # of one core, in that time
    _random: Random = field(default_factory=lambda: Random(0))

    @property
    def items(self) -> int:
        return sum(one.items for one in self.scored)

    @property
    def latencies(self) -> list[float]:
        return [one.seconds for one in self.scored]

    def take(self, request: PreparedRequest, due: float, answer: Answer) -> float:
        """Seconds that a client should wait before it sends again."""
        came = time.perf_counter()
        self.statuses[answer.status] += 1
        if answer.status == 429:
            self.retry_after.append(_seconds(answer.headers.get("retry-after")))
            return self.retry_after[-1] or 1.0
        if answer.status != 200:
            return self.fail(f"status {answer.status}: {shown(answer)}")
        fields = as_scores(answer.json())
        if wrong := _wrong_shape(fields, request.num_items):
            return self.fail(f"an answer of the wrong shape: {wrong}")
        usage, timings = fields["usage"], {name: float(fields["timings"][name]) for name in TIMINGS}
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        size = (request.num_items, usage["prompt_tokens"], cached)
        self.scored.append(ScoredRequest(request.number, request.part, *size, came - due, fields["mode"], timings))
        self.see(request.number, answer_rows(fields["scores"], fields.get("continuations")).tolist())
        return 0.0

    def no_answer(self, why: Exception) -> float:
        self.statuses[0] += 1
        return self.fail(f"transport: {why}")

    def fail(self, what: str) -> float:
        self.num_errors += 1
        if len(self.errors) < MOST_ERRORS:
            self.errors.append(what[:400])
        return ERROR_PAUSE

    def see(self, number: int, rows: list[list[float]]) -> None:
        """A reservoir: every answer has the same chance to be kept."""
        if len(self.kept) < self.keep:
            self.kept.append((number, rows))
        elif (place := self._random.randrange(len(self.scored))) < self.keep:
            self.kept[place] = (number, rows)


def _wrong_shape(fields: Any, num_items: int) -> str | None:
    if not isinstance(fields, dict) or not {"scores", "usage", "timings", "mode"} <= fields.keys():
        return "it has no scores, usage, timings or mode"
    try:
        scores = np.array(fields["scores"], np.float64)
    except (TypeError, ValueError):
        return "scores are no rows of numbers"
    if num_items and (scores.ndim != 2 or len(scores) != num_items):
        return f"{len(scores)} rows of scores for {num_items} items"
    return None if np.all((scores >= 0) & (scores <= 1 + 1e-6)) else "a score is no probability"


def _seconds(header: str | None) -> float | None:
    try:
        return None if header is None else max(0.0, float(header))
    except ValueError:
        return None
