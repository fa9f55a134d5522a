"""A fixed pool of requests whose scores are known beforehand, so that every single answer of a long run is compared.

The scores are the library's, computed by a `Scorer` in this process before the server is started.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from onepass.api import ScoreRequest
from onepass.bench.mixed import MixedStream, result_rows
from onepass.bench.online.requests import Labels, PreparedRequest, Requests
from onepass.bench.online.window import Window
from onepass.evidence.tolerance import Tolerance, fair_gaps
from onepass.scorer import Scorer

ENOUGH_FOR_A_MEAN = 100


@dataclass
class Pool:
    """Requests at random, again and again; with `part`, only those of that size."""

    prepared: Sequence[PreparedRequest]
    part: str | None = None
    seed: int = 0
    made_late: int = 0

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._among = [one for one in self.prepared if self.part in (None, one.part)]
        assert self._among, f"the pool has no request of size {self.part}"

    def take(self) -> PreparedRequest:
        return self._random.choice(self._among)


@dataclass
class ComparedWindow(Window):
    """`wrong` counts answers whose scores are not those expected."""

    expected: dict[int, np.ndarray] = field(default_factory=dict)
    tolerance: Tolerance = field(default_factory=lambda: Tolerance(0.0, 0.0))
    wrong: int = 0
    most_difference: float = 0.0

    def see(self, number: int, rows: list[list[float]]) -> None:
        wanted, got = self.expected[number], np.array(rows, np.float64)
        gaps = fair_gaps(got, wanted) if got.shape == wanted.shape else np.array([np.inf])
        self.most_difference = max(self.most_difference, float(gaps.max()))
        # The mean of a few numbers is nearly the largest of them.
        mean = gaps.mean() if gaps.size >= ENOUGH_FOR_A_MEAN else 0.0
        if not (gaps.max() <= self.tolerance.most and mean <= self.tolerance.mean):
            self.wrong += 1
            self.fail(f"request {number}: scores differ from the library's by {gaps.max():.1e}")


def expected_rows(scorer: Scorer, stream: MixedStream, numbers: Sequence[int]) -> dict[int, np.ndarray]:
    """What the library answers to requests of the stream, one at a time."""
    return {number: result_rows(scorer.score_many([stream.request(number).request])[0]) for number in numbers}


def library_labels(scorer: Scorer, requests: Requests) -> Labels:
    candidates, content = requests.candidates(), requests.beginning()
    request = ScoreRequest(query=content.query, items=content.items, label_token_ids=candidates, mode="serial")
    return Labels.likeliest(candidates, scorer.score_many([request])[0].scores)
