"""What is scored in a benchmark: named shapes filled with seeded, distinct token ids, or requests from a file.

A workload is known by its checksum; two runs with equal checksums scored the same tokens. Timing it is `measure`.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from onepass.api import ScoreRequest
from onepass.engine.encoding.branches import BranchedRequest
from onepass.engine.encoding.encode import Encoder
from onepass.engine.encoding.ids import Ids
from onepass.errors import ConfigError, RequestError

VARIED = "-varied"  # after any name: item lengths ±50 % around the shape's


@dataclass(frozen=True)
class Shape:
    """Query tokens, items, and the shortest and longest item."""

    query: int
    items: int
    shortest: int
    longest: int
    cached: bool = False  # the query is on the device already when the timed call comes
    branches: int = 0  # that every item ends in, each of `branch_tokens`: a grid of items and questions
    branch_tokens: int = 0

    @property
    def item_tokens(self) -> int:
        return (self.shortest + self.longest) // 2


def _exact(query: int, items: int, tokens: int, cached: bool = False) -> Shape:
    return Shape(query, items, tokens, tokens, cached)


SHAPES: dict[str, Shape] = {
    "contract": _exact(2000, 500, 20),
    "track_low": _exact(183, 16, 26),
    "track_mean": _exact(420, 96, 55),
    "track_high": _exact(483, 128, 63),
    "home_low": _exact(155, 8, 30),
    "home_mean": _exact(275, 34, 50),
    "home_high": _exact(2375, 256, 70),
    "linkedin": _exact(120, 10, 180),
    "ragged": Shape(512, 128, 5, 200),
    "repeat-query": _exact(2000, 500, 20, cached=True),
    "many": _exact(2000, 10_000, 20),
    "small": _exact(512, 64, 20),
    "decisions": _exact(230, 5, 30),  # a state and five typed questions
    "grid": Shape(1500, 32, 40, 40, branches=4, branch_tokens=24),  # a state, 32 candidates, four questions about each
}


@dataclass(frozen=True)
class TokenRequest:
    """One request in token ids: what the engine is sent, what peers are sent, what the serial reference scores. Of a
    grid, `items` are all pairs of a candidate and a branch, as one prompt per question has them."""

    request: ScoreRequest
    query: Ids
    items: tuple[Ids, ...]
    labels: tuple[Ids, ...]  # one set an item; empty until labels are chosen
    candidates: tuple[Ids, ...] = ()  # of a grid
    branches: tuple[Ids, ...] = ()

    @property
    def tokens(self) -> int:
        """Each candidate counts once, however many branches follow it."""
        repeated = sum(map(len, self.candidates)) * max(0, len(self.branches) - 1)
        return len(self.query) + sum(map(len, self.items)) - repeated


@dataclass(frozen=True)
class Workload:
    name: str
    requests: tuple[TokenRequest, ...]
    seed: int | None = None
    cached: bool = False
    in_flight: int = 1  # requests that are kept in flight, each sent again when it is answered

    @property
    def num_items(self) -> int:
        return sum(len(request.items) for request in self.requests)

    @property
    def tokens(self) -> int:
        return sum(request.tokens for request in self.requests)

    @property
    def checksum(self) -> str:
        """sha256 of the token ids and of whether the query is cached; labels chosen for a model are not in it."""
        content = [self.cached, [[request.query, request.items] for request in self.requests]]
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()

    def sample(self, max_places: int) -> list[tuple[int, int]]:
        """At most `max_places` (request, item) places, evenly spread, the first and the last among them."""
        places = [(r, i) for r, request in enumerate(self.requests) for i in range(len(request.items))]
        chosen = np.unique(np.linspace(0, len(places) - 1, min(max_places, len(places))).round().astype(int))
        return [places[n] for n in chosen]

    def with_labels(self, labels: Sequence[int]) -> "Workload":
        """The same tokens; requests that came without labels ask for these."""
        own = tuple(labels)

        def labelled(plain: TokenRequest) -> TokenRequest:
            if plain.labels:
                return plain
            if isinstance(plain.request, BranchedRequest):
                request: ScoreRequest = replace(plain.request, branch_label_token_ids=[own] * len(plain.branches))
            else:
                request = replace(plain.request, label_token_ids=list(own))
            return replace(plain, request=request, labels=(own,) * len(plain.items))

        return replace(self, requests=tuple(map(labelled, self.requests)))

    def describe(self) -> dict[str, object]:
        """For reports: sizes, not tokens."""
        lengths = [len(item) for request in self.requests for item in request.items]
        return {
            "name": self.name,
            "checksum": self.checksum,
            "seed": self.seed,
            "cached": self.cached,
            "requests": len(self.requests),
            "in_flight": self.in_flight,
            "query_tokens": sum(len(request.query) for request in self.requests) / max(1, len(self.requests)),
            "items": self.num_items,
            "item_tokens": {"min": min(lengths), "mean": float(np.mean(lengths)), "max": max(lengths)},
            "tokens": self.tokens,
        }


def shape_named(name: str) -> Shape:
    base = name.removesuffix(VARIED)
    if base not in SHAPES:
        raise ConfigError(
            f"workload must be one of {', '.join(SHAPES)}, with {VARIED} for varied lengths; got {name!r}"
        )
    shape = SHAPES[base]
    if base == name:
        return shape
    return replace(shape, shortest=max(1, shape.shortest // 2), longest=shape.longest * 3 // 2)


def resized(shape: Shape, query: int | None, items: int | None, item_tokens: int | None) -> Shape:
    """The same with other sizes, where they are given."""
    changed = {"query": query, "items": items, "shortest": item_tokens, "longest": item_tokens}
    return replace(shape, **{name: size for name, size in changed.items() if size is not None})  # type: ignore[arg-type]


def make_workload(name: str, shape: Shape, vocab_size: int, seed: int = 0, in_flight: int = 1) -> Workload:
    """So many requests as are in flight together, of one shape and with tokens of their own."""
    requests = tuple(_token_request(shape, vocab_size, seed + number) for number in range(in_flight))
    return Workload(name, requests, seed, shape.cached, in_flight)


def _token_request(shape: Shape, vocab_size: int, seed: int) -> TokenRequest:
    """Fewer items of the same shape are the first of more: sweeps over items share their beginnings."""
    lengths = np.random.default_rng([seed, 1]).integers(shape.shortest, shape.longest + 1, shape.items)
    if shape.branches:
        return _grid(shape, vocab_size, seed, lengths.tolist())
    stream = _distinct(vocab_size, shape.query + int(lengths.sum()), seed)
    query, ends = tuple(stream[: shape.query].tolist()), shape.query + np.cumsum(lengths)
    items = tuple(tuple(stream[end - n : end].tolist()) for n, end in zip(lengths, ends, strict=True))
    request = ScoreRequest(query=list(query), items=[list(item) for item in items])
    return TokenRequest(request, query, items, ())


def _grid(shape: Shape, vocab_size: int, seed: int, lengths: list[int]) -> TokenRequest:
    sizes = [shape.query, *[shape.branch_tokens] * shape.branches, *lengths]
    stream, ends = _distinct(vocab_size, sum(sizes), seed), np.cumsum(sizes).tolist()
    query, *parts = (tuple(stream[end - size : end].tolist()) for size, end in zip(sizes, ends, strict=True))
    branches, candidates = tuple(parts[: shape.branches]), tuple(parts[shape.branches :])
    request = BranchedRequest(
        query=list(query), items=list(map(list, candidates)), branches=branches, branch_label_token_ids=()
    )
    pairs = tuple(candidate + branch for candidate in candidates for branch in branches)
    return TokenRequest(request, query, pairs, (), candidates, branches)


def _distinct(vocab_size: int, count: int, seed: int) -> np.ndarray:
    """No id occurs twice before every id of the vocabulary has occurred once."""
    random = np.random.default_rng([seed, 0])
    return np.concatenate([random.permutation(vocab_size) for _ in range(-(-count // vocab_size))])[:count]


def workload_of(name: str, requests: Sequence[ScoreRequest], encoder: Encoder) -> Workload:
    """Requests as they came (text stays text, so that encoding it is timed), with their token ids beside them."""
    token_requests = []
    for number, request in enumerate(requests, start=1):
        if request.item_first or request.continuations is not None or request.context is not None:
            raise RequestError(
                "invalid_request",
                f"request {number}: a benchmark takes query, items and labels; "
                "item_first, continuations and context are not compared with the serial reference here",
            )
        encoded = encoder.encode(request)
        token_requests.append(TokenRequest(request, encoded.context, encoded.items, encoded.labels))
    if not any(request.items for request in token_requests):
        raise RequestError("missing_items", f"a benchmark needs at least one item; {name} has none", "items")
    return Workload(name, tuple(token_requests))
