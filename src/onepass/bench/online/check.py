"""Scores of a window's answers against the server's own serial mode: some items of some requests, sent again after it.

An item's score depends on nothing but its query and itself, so that a few items of a large request can be asked alone.
"""

from dataclasses import dataclass

import numpy as np

from onepass.bench.mixed import answer_rows
from onepass.bench.online.connection import TransportError
from onepass.bench.online.decision_answer import as_scores
from onepass.bench.online.requests import RequestStream
from onepass.bench.online.target import Target, shown
from onepass.bench.online.window import Window
from onepass.bench.row import Differences

MOST_REQUESTS = 5


@dataclass(frozen=True)
class CheckResult:
    differences: Differences | None
    problem: str | None = None  # why nothing could be compared


@dataclass(frozen=True)
class AnswerPairs:
    """What came in the window and what came in mode `serial`, [items, numbers] of each request."""

    pairs: list[tuple[np.ndarray, np.ndarray]]
    problem: str | None = None


async def check(
    target: Target, requests: RequestStream, window: Window, most_items: int, most_requests: int = MOST_REQUESTS
) -> CheckResult:
    """`most_items` in all, spread over the kept requests, the first and the last item of each among them."""
    answers = await score_serially(target, requests, window, most_items, most_requests)
    if answers.problem is not None or not answers.pairs:
        return CheckResult(None, answers.problem)
    every = np.concatenate([np.abs(got - wanted).ravel() for got, wanted in answers.pairs])
    items = sum(len(wanted) for _, wanted in answers.pairs)
    return CheckResult(Differences(float(every.max()), float(every.mean()), items))


async def score_serially(
    target: Target, requests: RequestStream, window: Window, most_items: int, most_requests: int
) -> AnswerPairs:
    kept = [(number, rows) for number, rows in window.kept if len(rows)][: max(1, min(most_items, most_requests))]
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for n, (number, rows) in enumerate(kept):
        share = most_items * (n + 1) // len(kept) - most_items * n // len(kept)
        places = np.unique(np.linspace(0, len(rows) - 1, min(share, len(rows))).round().astype(int)).tolist()
        try:
            answer = await target.score(requests.serial(number, places), requests.path)
            if answer.status != 200:
                return AnswerPairs([], f"the serial check was answered with status {answer.status}: {shown(answer)}")
            fields = as_scores(answer.json())
        except TransportError as error:
            return AnswerPairs([], f"the serial check had no answer: {error}")
        serial = answer_rows(fields["scores"], fields.get("continuations"))
        pairs.append((np.array(rows)[places], serial[places] if len(serial) == len(rows) else serial))
    return AnswerPairs(pairs)
