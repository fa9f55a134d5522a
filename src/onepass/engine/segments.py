"""The tokens of a request after its context, as flat arrays: items, branches, and where to read out.

Items and branches are both segments; a family is an item with (some of) its branches and is never split over rows.
An item whose branches are many is repeated in several families, so that a family stays short. Padding and shapes are
`pack`'s work.
"""

from dataclasses import dataclass
from itertools import chain

import numpy as np

from onepass.engine.encode import Encoded
from onepass.engine.ids import Ids

FROM_CONTEXT = -1  # a read-out at the context's last token: an empty item's score
LONG_FAMILY = 256


@dataclass(frozen=True)
class Segments:
    tokens: np.ndarray  # [tokens] all segments, one after another
    starts: np.ndarray  # [segments + 1] where each begins in `tokens`
    parents: np.ndarray  # [segments] the parent segment's number, or -1 for the context
    offsets: np.ndarray  # [segments] positions after the context's end at which it begins
    families: np.ndarray  # [families + 1] where each family begins, in segments
    readouts: np.ndarray  # [readouts] token to read at, or FROM_CONTEXT
    readout_starts: np.ndarray  # [families + 1] where each family's read-outs begin
    labels: np.ndarray  # [readouts, labels] ids, zero-padded

    @property
    def num_families(self) -> int:
        return len(self.families) - 1

    def family_tokens(self) -> np.ndarray:
        """[families] how many tokens each family has."""
        edges = self.starts[self.families]
        return edges[1:] - edges[:-1]


def segments_of(encoded: Encoded, apart: bool = False) -> Segments:
    """`apart` gives every continuation a copy of its item, as one plain sequence: what mode `serial` runs."""
    return _with_branches(encoded, apart) if encoded.continuations else _items_only(encoded)


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
    return Segments(
        tokens=flat,
        starts=starts,
        parents=np.full(count, -1),
        offsets=np.zeros(count, np.int64),
        families=number,
        readouts=readouts,
        readout_starts=number,
        labels=_padded(encoded.labels),
    )


def _with_branches(encoded: Encoded, apart: bool) -> Segments:
    """A continuation's first token is read at the item's last token; the others along a branch of all but its last."""
    width = max(1, max(map(len, encoded.labels), default=1))
    made = _Made([], [], [], [], [0], [], [0])
    for item, labels in zip(encoded.items, encoded.labels, strict=True):
        for first, branches in _branch_groups(len(item), encoded.continuations, apart):
            _add_family(made, item, labels if first else (), branches, width, apart)
    lengths = np.array([len(s) for s in made.segments], np.int64)
    starts = _starts(lengths)
    readouts = [FROM_CONTEXT if at is None else int(starts[at[0]]) + at[1] for at in made.readouts]
    return Segments(
        tokens=np.fromiter(chain.from_iterable(made.segments), np.int32, int(starts[-1])),
        starts=starts,
        parents=np.array(made.parents, np.int64),
        offsets=np.array(made.offsets, np.int64),
        families=np.array(made.families),
        readouts=np.array(readouts, np.int64),
        readout_starts=np.array(made.readout_starts),
        labels=_padded(tuple(made.labels), width),
    )


@dataclass(frozen=True)
class _Made:
    segments: list[Ids]
    parents: list[int]
    offsets: list[int]
    readouts: list[tuple[int, int] | None]  # (segment, token in it), or the context's last
    families: list[int]
    labels: list[Ids]
    readout_starts: list[int]


def _branch_groups(item_tokens: int, continuations: tuple[Ids, ...], apart: bool) -> list[tuple[bool, tuple[Ids, ...]]]:
    """Continuations in groups whose branches, with the item, make families of bounded length."""
    if apart:
        return [(i == 0, (continuation,)) for i, continuation in enumerate(continuations)]
    limit = max(LONG_FAMILY, 4 * item_tokens)
    groups: list[list[Ids]] = [[]]
    used = item_tokens
    for continuation in continuations:
        if groups[-1] and used + len(continuation) - 1 > limit:
            groups.append([])
            used = item_tokens
        groups[-1].append(continuation)
        used += len(continuation) - 1
    return [(i == 0, tuple(group)) for i, group in enumerate(groups)]


def _add_family(made: _Made, item: Ids, labels: Ids, continuations: tuple[Ids, ...], width: int, apart: bool) -> None:
    number = len(made.segments)
    made.segments.append(item + continuations[0][:-1] if apart else item)
    made.parents.append(-1)
    made.offsets.append(0)
    end = (number, len(item) - 1) if item else None
    wanted = labels + tuple(c[0] for c in continuations)
    for at in range(0, len(wanted), width):
        made.readouts.append(end)
        made.labels.append(wanted[at : at + width])
    for continuation in continuations:
        if len(continuation) == 1:
            continue
        branch, before = (number, len(item)) if apart else (len(made.segments), 0)
        if not apart:
            made.segments.append(continuation[:-1])
            made.parents.append(number)
            made.offsets.append(len(item))
        for j, target in enumerate(continuation[1:]):
            made.readouts.append((branch, before + j))
            made.labels.append((target,))
    made.families.append(len(made.segments))
    made.readout_starts.append(len(made.readouts))


def regroup(encoded: Encoded, values: np.ndarray, apart: bool = False) -> tuple[np.ndarray, list[list[list[float]]]]:
    """What was read out, [readouts, labels], as the labels' [items, labels] and each continuation's tokens by item."""
    width = values.shape[1]
    label_rows = np.zeros((len(encoded.items), max(map(len, encoded.labels), default=0)), values.dtype)
    by_item: list[list[list[float]]] = []
    at = 0
    for number, (item, labels) in enumerate(zip(encoded.items, encoded.labels, strict=True)):
        row: list[list[float]] = []
        for first, group in _branch_groups(len(item), encoded.continuations, apart):
            count = (len(labels) if first else 0) + len(group)
            blocks = -(-count // width)
            heads = values[at : at + blocks].reshape(-1)[:count]
            at += blocks
            if first:
                label_rows[number, : len(labels)] = heads[: len(labels)]
                heads = heads[len(labels) :]
            for head, continuation in zip(heads, group, strict=True):
                rest = values[at : at + len(continuation) - 1, 0]
                at += len(continuation) - 1
                row.append([float(head), *map(float, rest)])
        by_item.append(row)
    return label_rows, by_item


def _starts(lengths: np.ndarray) -> np.ndarray:
    starts = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=starts[1:])
    return starts


def _padded(rows: tuple[Ids, ...], width: int | None = None) -> np.ndarray:
    width = width or max(map(len, rows), default=1)
    out = np.zeros((len(rows), width), np.int32)
    if rows and rows.count(rows[0]) == len(rows):  # one set of labels for all items, as is usual
        out[:, : len(rows[0])] = rows[0]
        return out
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out
