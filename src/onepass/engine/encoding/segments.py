"""The tokens of a request after its context, as flat arrays: items, branches, read-outs, and the labels read there.

Items and branches are both segments; a family is an item with (some of) its branches and is never split over steps. An
item whose branches are many is repeated in several families, so that a family stays short. A family longer than a step
is one plain segment: it is computed as a sequence of its own that continues the context (`planner`).

What is read has one order, however it was computed: for each item its labels, then each continuation's tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np

from onepass.engine.encoding.encode import Encoded
from onepass.engine.encoding.ids import Ids

FROM_CONTEXT = -1  # a read-out at the context's last token: an empty item's score
LONG_FAMILY = 256


@dataclass(frozen=True)
class FamilyLimit:
    """What a step holds of one family."""

    tokens: int
    readouts: int


@dataclass(frozen=True)
class Segments:
    tokens: np.ndarray  # [tokens] all segments, one after another
    starts: np.ndarray  # [segments + 1] where each begins in `tokens`
    parents: np.ndarray  # [segments] the parent segment's number, or -1 for the context
    offsets: np.ndarray  # [segments] positions after the context's end at which it begins
    families: np.ndarray  # [families + 1] where each family begins, in segments
    readouts: np.ndarray  # [readouts] token to read at, or FROM_CONTEXT; ascending within a family, each once
    readout_starts: np.ndarray  # [families + 1] where each family's read-outs begin
    pair_starts: np.ndarray  # [readouts + 1] where each read-out's pairs begin
    labels: np.ndarray  # [pairs] the label of each pair
    targets: np.ndarray  # [pairs] where its logit goes in the order of results

    @property
    def num_families(self) -> int:
        return len(self.families) - 1

    def family_tokens(self) -> np.ndarray:
        """[families] how many tokens each family has."""
        edges = self.starts[self.families]
        return edges[1:] - edges[:-1]


def item_starts(encoded: Encoded) -> np.ndarray:
    """[items + 1] where each item's results begin: its labels, then its continuations' tokens."""
    counts = np.fromiter(map(len, encoded.labels), np.int64, len(encoded.labels))
    if any(encoded.continuations):
        counts += [sum(map(len, texts)) for texts in encoded.continuations]
    return _starts(counts)


def segments_of(encoded: Encoded, limit: FamilyLimit, apart: bool = False) -> Segments:
    """No family with branches is above `limit`. `apart` gives every continuation a copy of its item, as one plain
    sequence: what mode `serial` runs."""
    if encoded.branches:
        return _with_labelled_branches(encoded, limit, apart)
    return _with_branches(encoded, limit, apart) if any(encoded.continuations) else _items_only(encoded)


def _items_only(encoded: Encoded) -> Segments:
    """The common case, without a Python loop over tokens."""
    count = len(encoded.items)
    lengths = np.fromiter(map(len, encoded.items), np.int64, count)
    starts = _starts(lengths)
    flat = encoded.flat
    if flat is None:
        flat = np.fromiter(chain.from_iterable(encoded.items), np.int32, int(starts[-1]))
    number = np.arange(count + 1)
    readouts = starts[1:] - 1
    if not all(encoded.items):
        readouts[lengths == 0] = FROM_CONTEXT
    labels, pair_starts = _label_pairs(encoded.labels, number)
    none = np.zeros(count, np.int64)
    return Segments(
        tokens=flat,
        starts=starts,
        parents=none - 1,
        offsets=none,
        families=number,
        readouts=readouts,
        readout_starts=number,
        pair_starts=pair_starts,
        labels=labels,
        targets=np.arange(len(labels)),
    )


class _Builder:
    """Families of items with branches, one after another."""

    def __init__(self) -> None:
        self.segments: list[Ids] = []
        self.parents: list[int] = []
        self.offsets: list[int] = []
        self.families: list[int] = [0]
        self.readouts: list[tuple[int, int] | None] = []  # (segment, token in it), or the context's last
        self.readout_starts: list[int] = [0]
        self.pair_starts: list[int] = [0]
        self.labels: list[int] = []
        self.targets: list[int] = []

    def segment(self, tokens: Ids, parent: int, offset: int) -> int:
        self.segments.append(tokens)
        self.parents.append(parent)
        self.offsets.append(offset)
        return len(self.segments) - 1

    def read(self, at: tuple[int, int] | None, labels: Sequence[int], targets: Sequence[int]) -> None:
        if not labels:
            return
        self.readouts.append(at)
        self.labels.extend(labels)
        self.targets.extend(targets)
        self.pair_starts.append(len(self.labels))

    def end_family(self) -> None:
        self.families.append(len(self.segments))
        self.readout_starts.append(len(self.readouts))

    def finished(self) -> Segments:
        starts = _starts(np.array([len(s) for s in self.segments], np.int64))
        readouts = [FROM_CONTEXT if at is None else int(starts[at[0]]) + at[1] for at in self.readouts]
        return Segments(
            tokens=np.fromiter(chain.from_iterable(self.segments), np.int32, int(starts[-1])),
            starts=starts,
            parents=np.array(self.parents, np.int64),
            offsets=np.array(self.offsets, np.int64),
            families=np.array(self.families),
            readouts=np.array(readouts, np.int64),
            readout_starts=np.array(self.readout_starts),
            pair_starts=np.array(self.pair_starts),
            labels=np.array(self.labels, np.int32),
            targets=np.array(self.targets, np.int64),
        )


def _with_branches(encoded: Encoded, limit: FamilyLimit, apart: bool) -> Segments:
    """A continuation's first token is read at the item's last token; the others along a branch of all but its last."""
    builder = _Builder()
    target = 0
    for item, labels, texts in zip(encoded.items, encoded.labels, encoded.continuations, strict=True):
        within = [0, *accumulate(map(len, texts))]
        after = target + len(labels)
        firsts = [after + start for start in within[:-1]]
        longest = max(map(len, texts))
        long = len(item) + longest - 1 > limit.tokens or longest > limit.readouts
        # Every branch token is read at, and the item's end once.
        room = min(_family_room(len(item), limit), limit.readouts - 1)
        for number, group in enumerate(_groups([len(text) - 1 for text in texts], room, apart or long)):
            own = (labels, range(target, after)) if number == 0 else ((), range(0))
            continuations = [texts[c] for c in group]
            add = _add_plain if apart or long else _add_family
            add(builder, item, own, continuations, [firsts[c] for c in group])
        target = after + within[-1]
    return builder.finished()


def _with_labelled_branches(encoded: Encoded, limit: FamilyLimit, apart: bool) -> Segments:
    """Every item ends in the same branches, and labels are read at the end of each: item by item, branch by branch."""
    builder = _Builder()
    branches, lengths = encoded.branches, list(map(len, encoded.branches))
    starts = item_starts(encoded).tolist()
    for index, item in enumerate(encoded.items):
        plain = apart or len(item) + max(lengths) > limit.tokens
        for group in _groups(lengths, _family_room(len(item), limit), plain, limit.readouts):
            number = -1 if plain else builder.segment(item, -1, 0)
            for b in group:
                row = index * len(branches) + b
                tokens = item + branches[b] if plain else branches[b]
                segment = builder.segment(tokens, number, 0 if plain else len(item))
                targets = range(starts[row], starts[row + 1])
                builder.read((segment, len(tokens) - 1), encoded.labels[row], targets)
            builder.end_family()
    return builder.finished()


def _family_room(item_tokens: int, limit: FamilyLimit) -> int:
    """How many tokens of branches a family has at most, so that it stays short."""
    return min(max(LONG_FAMILY, 4 * item_tokens), limit.tokens - item_tokens)


def _groups(branch_tokens: Sequence[int], room: int, apart: bool, max_branches: int | None = None) -> list[list[int]]:
    """Branches, by number, in groups of at most `room` tokens and `max_branches`, or each `apart`."""
    if apart:
        return [[b] for b in range(len(branch_tokens))]
    groups: list[list[int]] = [[]]
    used = 0
    for number, tokens in enumerate(branch_tokens):
        if groups[-1] and (used + tokens > room or len(groups[-1]) == max_branches):
            groups.append([])
            used = 0
        groups[-1].append(number)
        used += tokens
    return groups


_Own = tuple[Sequence[int], Sequence[int]]  # an item's labels, and where their logits go


def _add_family(builder: _Builder, item: Ids, own: _Own, continuations: list[Ids], firsts: list[int]) -> None:
    number = builder.segment(item, -1, 0)
    end = (number, len(item) - 1) if item else None
    builder.read(end, [*own[0], *(c[0] for c in continuations)], [*own[1], *firsts])
    for continuation, first in zip(continuations, firsts, strict=True):
        if len(continuation) > 1:
            branch = builder.segment(continuation[:-1], number, len(item))
            for n, token in enumerate(continuation[1:]):
                builder.read((branch, n), [token], [first + 1 + n])
    builder.end_family()


def _add_plain(builder: _Builder, item: Ids, own: _Own, continuations: list[Ids], firsts: list[int]) -> None:
    """An item and one continuation as one segment."""
    (continuation,), (first,) = continuations, firsts
    number = builder.segment(item + continuation[:-1], -1, 0)
    end = (number, len(item) - 1) if item else None
    builder.read(end, [*own[0], continuation[0]], [*own[1], first])
    for n, token in enumerate(continuation[1:]):
        builder.read((number, len(item) + n), [token], [first + 1 + n])
    builder.end_family()


def _starts(lengths: np.ndarray) -> np.ndarray:
    starts = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=starts[1:])
    return starts


def _label_pairs(rows: tuple[Ids, ...], number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The labels of all items, [pairs], and where each item's begin; `number` counts the items."""
    if rows and rows.count(rows[0]) == len(rows):  # one set of labels for all items, as is usual
        labels = np.empty((len(rows), len(rows[0])), np.int32)
        labels[:] = rows[0]
        return labels.reshape(-1), number * len(rows[0])
    starts = _starts(np.fromiter(map(len, rows), np.int64, len(rows)))
    return np.fromiter(chain.from_iterable(rows), np.int32, int(starts[-1])), starts
