"""Token ids to score, drawn or cut from `prose`, and how to change them: which items are mutated in which request.

The items of a small count are the first of a large one, so that one serial pass serves every count.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from math import comb

import numpy as np

from onepass.validate.prose import prose
from onepass.validate.settings import Settings

Ids = list[int]
Encode = Callable[[str], Ids]
FEW_WORDS = 40  # distinct tokens; the prose has more in any tokenizer that was made for text
DIRECT = 8  # up to this many items, each index is mutated alone


@dataclass(frozen=True)
class Workload:
    vocab_size: int
    query: Ids
    items: list[Ids]  # as many as the largest count

    def first(self, count: int) -> list[Ids]:
        return self.items[:count]

    def with_others(self, indexes: Sequence[int], seed: int) -> "Workload":
        """Other tokens in place of some items: a piece, of the same length, of the items one after another."""
        random, items = np.random.default_rng(seed), self.items[:]
        text = [token for item in items for token in item]
        for index in indexes:
            length = len(items[index])
            start = int(random.integers(0, len(text) - length + 1))
            items[index] = text[start : start + length]
        return replace(self, items=items)

    def sample(self, count: int, most: int) -> list[int]:
        """Indexes to score serially: all, or at most `most` with the first, the last, an empty and a longest one."""
        if count <= most:
            return list(range(count))
        lengths = [len(item) for item in self.first(count)]
        chosen = {0, count - 1, int(np.argmin(lengths)), int(np.argmax(lengths))}
        # The beginning is shared by all counts, so that its serial scores are computed once.
        chosen |= set(range(1, most // 2)) | set(np.linspace(0, count - 1, most // 2 - 3).astype(int).tolist())
        return sorted(chosen)


def make_workload(vocab_size: int, settings: Settings, encode: Encode | None = None) -> Workload:
    """Pieces of prose where the model has a tokenizer to `encode` it: what a trained model gives after random ids is
    nearly flat, and hardly changes where isolation is broken. Else random ids."""
    random = np.random.default_rng(settings.seed)
    count, longest = max(settings.counts), settings.item_tokens
    # Mostly short, some long: the mean is about a third of the longest, so that 500 items fit one CPU step.
    lengths = np.minimum(1 + random.geometric(min(1.0, 3.5 / longest), count), longest)
    # Never empty at 0 and 1: with two items, the second must be able to see the first if isolation is broken.
    for place, length in ((2, 0), (3, 1), (5, longest)):
        lengths[place : place + 1] = length
    lengths[9::16] = 0
    wanted = settings.query_tokens + int(lengths.sum())
    tokens = _prose(wanted, settings.seed, encode) if encode else []
    if len(set(tokens)) < FEW_WORDS:  # no tokenizer, or one that knows no English
        tokens = random.integers(0, vocab_size, wanted).tolist()
    query, rest = tokens[: settings.query_tokens], tokens[settings.query_tokens :]
    ends = np.cumsum(lengths)
    return Workload(vocab_size, query, [rest[end - n : end] for n, end in zip(lengths, ends, strict=True)])


def _prose(tokens: int, seed: int, encode: Encode) -> Ids:
    return encode(prose(1 + tokens // 5, seed))[:tokens]  # no sentence is shorter than 5 tokens


def mutated_sets(count: int) -> list[set[int]]:
    """Sets of indexes to mutate together, so that for every two items some request changes one and not the other.

    Up to DIRECT items, each index alone. Beyond, every index gets its own k/2-subset of k requests in which it is
    mutated. No such subset contains another, so for every ordered pair (mutated, observed) there is a request that
    mutates the first and leaves the second: 7 requests prove 33 items, 12 prove 500, and no pair is left out.
    """
    if count <= DIRECT:
        return [{index} for index in range(count)]
    requests = next(k for k in range(2, 64) if comb(k, k // 2) >= count)
    subsets = islice(combinations(range(requests), requests // 2), count)
    sets: list[set[int]] = [set() for _ in range(requests)]
    for index, subset in enumerate(subsets):
        for request in subset:
            sets[request].add(index)
    return sets


def with_other_tokens(items: list[Ids], changed: set[int], vocab_size: int, seed: int) -> list[Ids]:
    """The same lengths; every token of the changed items is another one."""
    random = np.random.default_rng(seed)

    def other(item: Ids) -> Ids:
        shift = random.integers(1, vocab_size, len(item))
        return ((np.array(item, np.int64) + shift) % vocab_size).tolist()

    return [other(item) if i in changed else item for i, item in enumerate(items)]


def with_other_lengths(items: list[Ids], changed: set[int], vocab_size: int, seed: int) -> list[Ids]:
    """Changed items exchange lengths in a ring and get new tokens; one whose length came out the same is cut or grows.
    An item alone gets two tokens more. The number of tokens, and so the rung, hardly changes."""
    random = np.random.default_rng(seed)
    ring = sorted(changed)
    lengths = [len(items[i]) for i in ring]
    new = lengths[1:] + lengths[:1] if len(ring) > 1 else [lengths[0] + 2]
    new = [n if n != old else max(1, n - 1) if n > 1 else n + 1 for n, old in zip(new, lengths, strict=True)]
    out = list(items)
    for index, length in zip(ring, new, strict=True):
        out[index] = random.integers(0, vocab_size, length).tolist()
    return out
