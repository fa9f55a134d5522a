"""Scores of a window's answers against the server's own serial mode: some items of some requests, sent again after it.

An item's score depends on nothing but its query and itself, so that a few items of a large request can be asked alone.
"""

from dataclasses import dataclass

import numpy as np

from onepass.bench.http_connection import TransportError
from onepass.bench.http_requests import Requests
from onepass.bench.http_target import Target, shown
from onepass.bench.http_window import Window
from onepass.bench.row import Differences

MOST_REQUESTS = 5


@dataclass(frozen=True)
class Checked:
    found: Differences | None
    problem: str | None = None  # why nothing could be compared


async def check(target: Target, requests: Requests, window: Window, most_items: int) -> Checked:
    """`most_items` in all, spread over the kept requests, the first and the last item of each among them."""
    kept = [(number, scores) for number, scores in window.kept if scores][: max(1, min(most_items, MOST_REQUESTS))]
    gaps: list[np.ndarray] = []
    for n, (number, scores) in enumerate(kept):
        share = most_items * (n + 1) // len(kept) - most_items * n // len(kept)
        places = np.unique(np.linspace(0, len(scores) - 1, min(share, len(scores))).round().astype(int)).tolist()
        try:
            answer = await target.score(requests.serial(number, places))
            if answer.status != 200:
                return Checked(None, f"the serial check was answered with status {answer.status}: {shown(answer)}")
            wanted = np.array(answer.json()["scores"], np.float64)
        except TransportError as error:
            return Checked(None, f"the serial check had no answer: {error}")
        gaps += list(np.abs(np.array([scores[place] for place in places]) - wanted))
    if not gaps:
        return Checked(None)
    return Checked(Differences(float(np.max(gaps)), float(np.mean(gaps)), len(gaps)))
