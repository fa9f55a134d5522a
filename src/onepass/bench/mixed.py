"""Mixed traffic: a seeded stream of requests whose kinds, lengths and counts all differ, as users send them.

Request number n depends on the seed, the kinds and the vocabulary alone, so that it can be built again after a window.
Driving a scorer with the stream is `mixed_run`, a server `mixed`; peers get the same requests in `mixed_peers`.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from onepass.api import ScoreRequest, ScoreResult
from onepass.errors import ConfigError

MIXED = "mixed"
DECK = 1 << 20  # token ids that requests are cut from
DESCRIBED_BY = 256  # so many of the first requests give the mean sizes of a report
KNOWN_BY = 16  # so many of the first requests give the checksum

Range = tuple[int, int]  # both ends included


@dataclass(frozen=True)
class RequestKind:
    """How often a kind comes, and the ranges its sizes are drawn from. No labels: continuations instead."""

    weight: int
    query: Range
    items: Range
    item_tokens: Range
    labels: Range


KINDS: dict[str, RequestKind] = {
    "tiny": RequestKind(2, (8, 60), (1, 6), (1, 12), (2, 2)),
    "small": RequestKind(6, (100, 400), (4, 20), (15, 45), (2, 3)),
    "mid": RequestKind(3, (400, 1500), (16, 80), (15, 60), (2, 2)),
    "large": RequestKind(1, (1500, 2500), (200, 500), (12, 30), (2, 2)),
    "labels": RequestKind(1, (50, 300), (4, 12), (10, 40), (5, 60)),
    "branches": RequestKind(1, (50, 400), (2, 12), (10, 60), (0, 0)),
}
CONTINUATIONS: Range = (1, 5)  # of a request without labels
CONTINUATION_TOKENS: Range = (1, 9)
ALL_KINDS = tuple(KINDS)


@dataclass(frozen=True)
class Traffic:
    """How a stream is sent: clients that each wait for their answer, for some seconds or a number of requests."""

    clients: int
    seconds: float | None
    num_requests: int | None = None
    kinds: tuple[str, ...] = ALL_KINDS

    @classmethod
    def decide(
        cls, platform: str, clients: int | None, seconds: float | None, num_requests: int | None, kinds: Sequence[str]
    ) -> "Traffic":
        """What was not given, by the platform: a CPU answers fewer requests and needs longer for as many."""
        cpu = platform == "cpu"
        if seconds is None and num_requests is None:
            seconds = 120.0 if cpu else 30.0
        return cls(clients or (8 if cpu else 16), seconds, num_requests, check_kinds(kinds))


def check_kinds(kinds: Sequence[str]) -> tuple[str, ...]:
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise ConfigError(f"kinds must be some of {', '.join(KINDS)}; got {', '.join(unknown)}")
    return tuple(dict.fromkeys(kinds)) or ALL_KINDS


@dataclass(frozen=True)
class RequestSizes:
    """Lengths in tokens. `labels` is how many there are."""

    kind: str
    query: int
    items: tuple[int, ...]
    labels: int
    softmax: bool
    continuations: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Of query and items, as the server's usage counts them."""
        return self.query + sum(self.items)


@dataclass(frozen=True)
class TrafficRequest:
    number: int
    sizes: RequestSizes
    request: ScoreRequest

    @property
    def kind(self) -> str:
        return self.sizes.kind


@dataclass(frozen=True)
class MixedStream:
    """The requests of a seed, each by its number. Tokens of a request are distinct as far as the vocabulary goes."""

    vocab_size: int
    seed: int = 0
    kinds: tuple[str, ...] = ALL_KINDS
    in_flight: int = 1  # for reports
    _weights: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", check_kinds(self.kinds))
        object.__setattr__(self, "_weights", np.cumsum([KINDS[kind].weight for kind in self.kinds]))

    @property
    def name(self) -> str:
        return MIXED if set(self.kinds) == set(KINDS) else f"{MIXED}:{'+'.join(self.kinds)}"

    def sizes(self, number: int) -> RequestSizes:
        return self._sizes(np.random.default_rng([self.seed, number, 4]))

    def request(self, number: int) -> TrafficRequest:
        random = np.random.default_rng([self.seed, number, 4])
        sizes = self._sizes(random)
        lengths = [sizes.query, *sizes.items, *sizes.continuations]
        ends = np.cumsum(lengths).tolist()
        # A place in the deck and a shift: two requests that begin alike would share a kept context.
        at, shift = int(random.integers(DECK)), int(random.integers(self.vocab_size))
        ids = ((self._deck[at : at + ends[-1]] + shift) % self.vocab_size).tolist()
        query, *parts = (ids[end - length : end] for length, end in zip(lengths, ends, strict=True))
        items, continuations = parts[: len(sizes.items)], parts[len(sizes.items) :]
        if not sizes.labels:
            return TrafficRequest(number, sizes, ScoreRequest(query=query, items=items, continuations=continuations))
        labels = random.choice(self.vocab_size, sizes.labels, replace=False).tolist()
        request = ScoreRequest(query=query, items=items, label_token_ids=labels, apply_softmax=sizes.softmax)
        return TrafficRequest(number, sizes, request)

    @cached_property
    def checksum(self) -> str:
        """sha256 of the first requests."""
        first = [fields_of(self.request(number).request) for number in range(KNOWN_BY)]
        return hashlib.sha256(json.dumps([self.name, first], separators=(",", ":")).encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        """For reports: the mean request of the first of them."""
        sizes = [self.sizes(number) for number in range(DESCRIBED_BY)]
        lengths = [length for one in sizes for length in one.items]
        return {
            "name": self.name, "checksum": self.checksum, "seed": self.seed, "cached": False,
            "requests": 1, "in_flight": self.in_flight,
            "query_tokens": round(float(np.mean([one.query for one in sizes]))),
            "items": round(float(np.mean([len(one.items) for one in sizes]))),
            "item_tokens": {"min": min(lengths), "mean": float(np.mean(lengths)), "max": max(lengths)},
            "tokens": round(float(np.mean([one.tokens for one in sizes]))),
            "kinds": {kind: vars(KINDS[kind]) for kind in self.kinds},
        }  # fmt: skip

    def _sizes(self, random: np.random.Generator) -> RequestSizes:
        name = self.kinds[int(np.searchsorted(self._weights, random.integers(self._weights[-1]), side="right"))]
        kind = KINDS[name]
        query, count = _draw(random, kind.query), _draw(random, kind.items)
        items = tuple(random.integers(kind.item_tokens[0], kind.item_tokens[1] + 1, count).tolist())
        labels, softmax = min(_draw(random, kind.labels), self.vocab_size), bool(random.random() < 0.5)
        continuations = (
            () if labels else tuple(_draw(random, CONTINUATION_TOKENS) for _ in range(_draw(random, CONTINUATIONS)))
        )
        return RequestSizes(name, query, items, labels, softmax and labels > 0, continuations)

    @cached_property
    def _deck(self) -> np.ndarray:
        """Permutations of the vocabulary, one after another; longer than its name says by the longest request."""
        longest = max(k.query[1] + k.items[1] * k.item_tokens[1] for k in KINDS.values())
        longest += CONTINUATIONS[1] * CONTINUATION_TOKENS[1]
        random = np.random.default_rng([self.seed, 5])
        times = -(-(DECK + longest) // self.vocab_size)
        return np.concatenate([random.permutation(self.vocab_size) for _ in range(times)])


def _draw(random: np.random.Generator, among: Range) -> int:
    return int(random.integers(among[0], among[1] + 1))


def fields_of(request: ScoreRequest) -> dict[str, Any]:
    """What a request of the stream asks for, as the HTTP API spells it."""
    body: dict[str, Any] = {"query": request.query, "items": request.items}
    if request.continuations is not None:
        return {**body, "continuations": request.continuations}
    return {**body, "label_token_ids": request.label_token_ids, "apply_softmax": request.apply_softmax}


def some_items(request: ScoreRequest, places: Sequence[int]) -> ScoreRequest:
    """The request with these items alone, in mode `serial`: an item's score depends on nothing but query and item."""
    items = list(cast(Sequence[Sequence[int]], request.items))
    return replace(request, items=[items[place] for place in places], mode="serial")


def result_rows(result: ScoreResult) -> np.ndarray:
    """[items, numbers] that are compared: scores as asked for, then the mean probability of each continuation."""
    return answer_rows(result.scores, result.to_dict()["continuations"] if result.continuations is not None else None)


def answer_rows(scores: Sequence[Sequence[float]], continuations: Sequence[Sequence[Any]] | None) -> np.ndarray:
    rows = np.array(scores, np.float64).reshape(len(scores), -1)
    if continuations is None:
        return rows
    means = np.array([[one["mean_logprob"] for one in row] for row in continuations], np.float64)
    return np.concatenate([rows, np.exp(means.reshape(len(scores), -1))], axis=1)
