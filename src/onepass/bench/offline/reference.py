"""The serial reference of a benchmark: sampled items alone in their sequences, timed and scored once for all rows.

It is the baseline of every speed-up and the oracle of every score check. It also chooses labels that mean something.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from onepass.api import ScoreRequest
from onepass.bench.offline.cases import Way
from onepass.bench.offline.measure import Measurement, Timing, measure, numbers, probabilities, requests_in
from onepass.bench.workloads import Ids, TokenRequest, Workload
from onepass.evidence.tolerance import BETWEEN_MODES, fair_labels
from onepass.loading.model import Model
from onepass.models.weights import Weights
from onepass.scorer import Scorer

NUM_LABELS = 3
NEGLIGIBLE = 1e-2  # of the vocabulary's probability: below, softmax over the labels is compared as well
CANDIDATES = 512
MOST_ITEMS = 512  # that labels are chosen by

Key = tuple[Ids, Ids, Ids]


@dataclass
class SerialSample:
    """Serial calls of one item each: their seconds, and the window they were timed in."""

    places: list[tuple[int, int]]
    seconds: list[float]
    timed: Measurement
    scores: np.ndarray  # [places, numbers]

    @property
    def seconds_per_item(self) -> float:
        return float(np.median(self.seconds))


@dataclass
class Reference:
    scorer: Scorer
    among_labels: bool = False
    _every: dict[str, np.ndarray] = field(default_factory=dict)  # by checksum of the workload
    _known: dict[Key, tuple[float, np.ndarray]] = field(default_factory=dict)
    _warm: set[tuple[int, int]] = field(default_factory=set)

    @classmethod
    def open(cls, model: Model, weights: Weights) -> "Reference":
        return cls(Scorer(model, weights, Way.named("serial").config))

    def sample(self, workload: Workload, most: int) -> SerialSample:
        """At most `most` items. An item sampled before for another row is not computed again."""
        places = workload.sample(most)
        keys = [_key(workload.requests[r], i) for r, i in places]
        timed = self._time([key for key in dict.fromkeys(keys) if key not in self._known])
        if timed.errors:
            return SerialSample(places, [], timed, np.zeros((0, 0)))
        found = [self._known[key] for key in keys]
        return SerialSample(places, [seconds for seconds, _ in found], timed, np.stack([score for _, score in found]))

    def _time(self, keys: Sequence[Key]) -> Measurement:
        """Each of these once, in one window; before it, one call of every new length."""
        for query, item, labels in keys:
            if (len(query), len(item)) not in self._warm:
                self._warm.add((len(query), len(item)))
                self.scorer.score_many([_alone(query, item, labels)])
        timed = measure(self.scorer, [_alone(*key) for key in keys], Timing(1, 0), cached=False)
        for key, seconds, result in zip(keys, timed.calls, timed.results[0] if timed.results else [], strict=False):
            self._known[key] = seconds, numbers(result, self.among_labels)[0]
        return timed

    def every_item(self, workload: Workload, serial: SerialSample) -> np.ndarray:
        """[items, labels] probabilities in the vocabulary, of all requests. One at a time would take minutes: the
        shared context is extended instead, and what was sampled one at a time must come out the same."""
        if workload.checksum not in self._every:
            results = self.scorer.score_many(requests_in(workload, "extend"))
            self._every[workload.checksum] = np.concatenate([probabilities(result) for result in results])
            found = np.stack([numbers(results[r], self.among_labels)[i] for r, i in serial.places])
            allowed = BETWEEN_MODES[str(self.scorer.weights.embed.dtype)].most
            assert np.abs(found - serial.scores).max() <= allowed, "unquantized modes differ: nothing to drift from"
        return self._every[workload.checksum]

    def choose_labels(self, tokens: TokenRequest) -> list[int]:
        """The likeliest of some candidates after the items: comparing probabilities of nearly nothing would prove
        nothing. Low ids are common tokens in most vocabularies; others are drawn. None that is sharp after an item."""
        vocab = self.scorer.model.config.vocab_size
        drawn = np.random.default_rng(0).permutation(vocab)[:CANDIDATES].tolist()
        candidates = list(dict.fromkeys([*range(min(vocab, CANDIDATES)), *drawn]))
        chosen = np.unique(
            np.linspace(0, len(tokens.items) - 1, min(MOST_ITEMS, len(tokens.items))).round().astype(int)
        )
        items = [list(tokens.items[i]) for i in chosen]

        def after(some: list[list[int]]) -> np.ndarray:
            request = ScoreRequest(query=list(tokens.query), items=some, label_token_ids=candidates, mode="extend")
            return np.exp(np.array(self.scorer.score_many([request])[0].logprobs))

        # A few at a time: the head's row of every candidate is held for each of them.
        found = np.concatenate([after(items[at : at + 32]) for at in range(0, len(items), 32)])
        likely, fair = found.mean(axis=0), fair_labels(found.max(axis=0), NUM_LABELS)
        best = np.argsort(-np.where(fair, likely, 0))[:NUM_LABELS]
        self.among_labels = bool(likely[best].sum() < NEGLIGIBLE)
        return [candidates[i] for i in best]

    def close(self) -> None:
        self.scorer.close()


def _key(request: TokenRequest, item: int) -> Key:
    return request.query, request.items[item], request.labels[item]


def _alone(query: Ids, item: Ids, labels: Ids) -> ScoreRequest:
    return ScoreRequest(query=list(query), items=[list(item)], label_token_ids=list(labels), mode="serial")
