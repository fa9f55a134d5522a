"""Retrieval metrics of a ranking: nDCG, MRR, MAP, recall and precision, with a cut-off or without, as in trec_eval.

A document is relevant with a grade of 1 or more; one without a judgment has grade 0. nDCG's gain is the grade itself,
discounted by log2(rank + 1), and its ideal ranking holds every judged document of the query, retrieved or not.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onepass.errors import RequestError

Grades = Mapping[str, int]
DEFAULT_METRICS = ("ndcg@10", "mrr@10", "map", "recall@10", "recall@100")
WRITTEN = re.compile(r"(?P<name>[a-z]+)(?:@(?P<k>[1-9]\d*))?")


@dataclass(frozen=True)
class Metric:
    """`k` None: over the whole ranking."""

    name: str
    k: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Metric":
        written = WRITTEN.fullmatch(text.strip().lower())
        if written is None or written["name"] not in FORMULAS:
            names = ", ".join(FORMULAS)
            raise RequestError("invalid_metric", f"a metric is {names}, with or without @k (ndcg@10); got {text!r}")
        return cls(written["name"], int(written["k"]) if written["k"] else None)

    def __str__(self) -> str:
        return self.name if self.k is None else f"{self.name}@{self.k}"

    def value(self, ranking: Sequence[str], grades: Grades) -> float:
        """Of the documents' ids, best first."""
        return FORMULAS[self.name](ranking[: self.k], grades, self.k)


def ndcg(ranking: Sequence[str], grades: Grades, k: int | None) -> float:
    ideal = _dcg(sorted(grades.values(), reverse=True)[:k])
    return _dcg([grades.get(ident, 0) for ident in ranking]) / ideal if ideal else 0.0


def _dcg(gains: Sequence[int]) -> float:
    return sum(max(0, gain) / math.log2(place + 1) for place, gain in enumerate(gains, start=1))


def mrr(ranking: Sequence[str], grades: Grades, k: int | None) -> float:
    return next((1 / place for place, ident in enumerate(ranking, start=1) if grades.get(ident, 0) > 0), 0.0)


def average_precision(ranking: Sequence[str], grades: Grades, k: int | None) -> float:
    relevant, total = 0, 0.0
    for place, ident in enumerate(ranking, start=1):
        if grades.get(ident, 0) > 0:
            relevant += 1
            total += relevant / place
    return total / max(1, _num_relevant(grades))


def recall(ranking: Sequence[str], grades: Grades, k: int | None) -> float:
    return sum(grades.get(ident, 0) > 0 for ident in ranking) / max(1, _num_relevant(grades))


def precision(ranking: Sequence[str], grades: Grades, k: int | None) -> float:
    return sum(grades.get(ident, 0) > 0 for ident in ranking) / max(1, k or len(ranking))


def _num_relevant(grades: Grades) -> int:
    return sum(grade > 0 for grade in grades.values())


FORMULAS: dict[str, Callable[[Sequence[str], Grades, int | None], float]] = {
    "ndcg": ndcg,
    "mrr": mrr,
    "map": average_precision,
    "recall": recall,
    "precision": precision,
}
