"""What is sent in a benchmark over HTTP: an endless, seeded stream of requests, every one of them distinct.

Request number n is the same in every run with the same mix, seed and server vocabulary, so a request can be made again
after the window instead of being kept. Sending them is `loops`; sizes by name are `workloads`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, Protocol

import numpy as np
import orjson

from onepass.bench.online.text import English
from onepass.bench.workloads import Shape, make_workload, shape_named
from onepass.errors import ConfigError

Kind = Literal["ids", "text"]
SCORE = "/v1/score"
KNOWN_BY = 16  # so many of the first requests make the checksum
NUM_LABELS = 3
CANDIDATES = 512
NEGLIGIBLE = 1e-2  # of the vocabulary's probability: below, labels are compared among themselves
APART = 1_000_003  # between the seeds of a stream's requests and those of another stream


@dataclass(frozen=True)
class MixPart:
    """One size in a mix, and how often it comes."""

    name: str
    shape: Shape
    weight: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "MixPart":
        """`track_mean:3`"""
        name, colon, weight = text.partition(":")
        if colon and not (weight.replace(".", "", 1).isdecimal() and float(weight) > 0):
            raise ConfigError(f"a part of a mix is NAME or NAME:WEIGHT with a weight above 0; got {text!r}")
        return cls(name, shape_named(name), float(weight) if colon else 1.0)


@dataclass(frozen=True)
class Labels:
    """Which labels are asked for. `softmax`: their probabilities in the vocabulary are next to nothing, so they are
    compared among themselves."""

    ids: tuple[int, ...] = ()
    softmax: bool = False

    @classmethod
    def likeliest(cls, candidates: Sequence[int], scores: Any) -> "Labels":
        """From every candidate's probability after some items: comparing probabilities of nearly nothing would prove
        nothing."""
        likely = np.array(scores, np.float64).mean(axis=0)
        best = np.argsort(-likely)[:NUM_LABELS]
        return cls(tuple(candidates[i] for i in best), bool(likely[best].sum() < NEGLIGIBLE))


@dataclass(frozen=True)
class PreparedRequest:
    """A request ready to be sent."""

    number: int
    part: str
    num_items: int
    body: bytes
    path: str = SCORE


class RequestStream(Protocol):
    """What a driver sends, each request by its number."""

    @property
    def name(self) -> str: ...

    @property
    def checksum(self) -> str: ...

    @property
    def labels(self) -> Labels: ...

    @property
    def path(self) -> str:
        """Where requests are posted."""

    def prepare(self, number: int) -> PreparedRequest: ...

    def serial(self, number: int, items: Sequence[int]) -> bytes:
        """Some items of a request again, or all of them, one sequence at a time."""

    def describe(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Content:
    part: str
    query: Any
    items: list[Any]


@dataclass(frozen=True)
class Requests:
    mix: tuple[MixPart, ...]
    vocab_size: int
    seed: int = 0
    labels: Labels = Labels()
    english: English | None = None  # None: token ids

    @property
    def name(self) -> str:
        return ",".join(f"{p.name}:{p.weight:g}" if p.weight != 1 else p.name for p in self.mix)

    @property
    def path(self) -> str:
        return SCORE

    @property
    def kind(self) -> Kind:
        return "ids" if self.english is None else "text"

    @property
    def checksum(self) -> str:
        """sha256 of the first requests' queries and items; labels chosen for a model are not in it."""
        first = [self.content(number) for number in range(KNOWN_BY)]
        content = [[self.kind, self.name], *([one.query, one.items] for one in first)]
        return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)).hexdigest()

    def content(self, number: int) -> Content:
        part = self._part(number)
        seed = self.seed * APART + 1 + number
        fixed = self.seed * APART if part.shape.cached else seed  # a query that comes again
        if self.english is None:
            return _of_ids(part, self.vocab_size, fixed, seed)
        query = self.english.text(Random(f"query {fixed}"), part.shape.query).lstrip()
        random = Random(f"items {seed}")
        lengths = [random.randint(part.shape.shortest, part.shape.longest) for _ in range(part.shape.items)]
        return Content(part.name, query, [self.english.text(random, length) for length in lengths])

    def prepare(self, number: int) -> PreparedRequest:
        content = self.content(number)
        return PreparedRequest(number, content.part, len(content.items), self.body(content))

    def serial(self, number: int, items: Sequence[int]) -> bytes:
        content = self.content(number)
        return self.body(replace(content, items=[content.items[i] for i in items]), mode="serial")

    def candidates(self) -> list[int]:
        """Token ids of which some may be likely: low ids are common tokens in most vocabularies, others are drawn."""
        drawn = np.random.default_rng(0).permutation(self.vocab_size)[:CANDIDATES].tolist()
        return list(dict.fromkeys([*range(min(self.vocab_size, CANDIDATES)), *drawn]))

    def beginning(self) -> Content:
        """Two items of the first request, to choose labels by."""
        content = self.content(0)
        return replace(content, items=content.items[:2])

    def describe(self) -> dict[str, Any]:
        """For reports: sizes asked for, not tokens. Items and tokens are means over the first requests."""
        parts = [self._part(number) for number in range(KNOWN_BY)]
        items = float(np.mean([part.shape.items for part in parts]))
        query = float(np.mean([part.shape.query for part in parts]))
        tokens = float(np.mean([part.shape.query + part.shape.items * part.shape.item_tokens for part in parts]))
        shapes = [share.shape for share in self.mix]
        return {
            "name": self.name, "kind": self.kind, "checksum": self.checksum, "seed": self.seed,
            "cached": all(shape.cached for shape in shapes), "query_tokens": query, "items": round(items),
            "requests": 1, "in_flight": 1,
            "item_tokens": {"min": min(s.shortest for s in shapes), "max": max(s.longest for s in shapes)},
            "tokens": round(tokens),
        }  # fmt: skip

    def _part(self, number: int) -> MixPart:
        if len(self.mix) == 1:
            return self.mix[0]
        weights = np.array([part.weight for part in self.mix])
        drawn = np.random.default_rng([self.seed, number, 2]).choice(len(self.mix), p=weights / weights.sum())
        return self.mix[int(drawn)]

    def body(self, content: Content, **fields: Any) -> bytes:
        """As JSON, with the labels."""
        body = {"query": content.query, "items": content.items, "label_token_ids": list(self.labels.ids), **fields}
        if self.labels.softmax:
            body["apply_softmax"] = True
        return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def _of_ids(part: MixPart, vocab_size: int, query_seed: int, item_seed: int) -> Content:
    (request,) = make_workload(part.name, part.shape, vocab_size, item_seed).requests
    query = request.query
    if query_seed != item_seed:
        (other,) = make_workload(part.name, part.shape, vocab_size, query_seed).requests
        query = other.query
    return Content(part.name, query, list(request.items))
