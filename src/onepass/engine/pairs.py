"""Scores of (query, document) pairs, as a cross-encoder gives them: a request per distinct query, read pair by pair."""

from collections.abc import Sequence
from typing import Any

from onepass.api import ScoreRequest, ScoreResult
from onepass.engine.ranking import rank_scores, ranking_request, relevance
from onepass.errors import RequestError
from onepass.loading.rerankers.templates import Ranker


class PairRequests:
    """`requests` share a query's context between its documents."""

    def __init__(self, ranker: Ranker, pairs: Sequence[Sequence[str]], instruction: str | None) -> None:
        self._num_pairs = len(pairs)
        self._places = places_by_query(pairs)
        readings = [
            ranking_request(ranker, "auto", query, [pairs[place][1] for place in places], instruction)
            for query, places in self._places.items()
        ]
        self.requests: list[ScoreRequest] = [request for request, _ in readings]
        self._readings = [reading for _, reading in readings]

    def scores(self, results: Sequence[ScoreResult], raw: bool) -> list[float]:
        """In the order of the pairs, from the results of `requests`; `raw` leaves out the activation."""
        scores = [0.0] * self._num_pairs
        for places, reading, result in zip(self._places.values(), self._readings, results, strict=True):
            read = rank_scores(reading, result) if raw else relevance(reading, result)
            for place, score in zip(places, read, strict=True):
                scores[place] = score
        return scores


def places_by_query(pairs: Any) -> dict[str, list[int]]:
    """The places of each distinct query, checked: every pair is a query and a document."""
    places: dict[str, list[int]] = {}
    for place, pair in enumerate(pairs):
        if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise RequestError("invalid_pairs", f"pairs[{place}] must be a query and a document, two strings", "pairs")
        places.setdefault(pair[0], []).append(place)
    return places
