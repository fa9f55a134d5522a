"""Families of segments into padded rows: the host side of a step, in numpy, ready to be sent to the device.

A `RowPlan` says which families of which request make one row; `pack` lays them out. What goes in which row is `plan`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from onepass.attention.base import RowShape
from onepass.attention.places import CONTEXT, PADDING, Places
from onepass.engine.buckets import bucket
from onepass.engine.segments import FROM_CONTEXT, Segments
from onepass.models.decoder import Rows


@dataclass(frozen=True)
class RowPlan:
    """One row: context tokens computed in it, the prefix length before them, and families [first, last)."""

    context: np.ndarray  # ids computed in this row
    prefix: int  # tokens of the context already computed
    segments: Segments | None
    first: int = 0
    last: int = 0
    keep: bool = False  # one more read-out, at the context's last token, goes with the kept keys

    @cached_property
    def num_items(self) -> int:
        """Item and branch tokens in the row."""
        s = self.segments
        return 0 if s is None else int(s.starts[s.families[self.last]] - s.starts[s.families[self.first]])

    @cached_property
    def num_readouts(self) -> int:
        s = self.segments
        return 1 if s is None else int(s.readout_starts[self.last] - s.readout_starts[self.first])

    @property
    def longest(self) -> int:
        s = self.segments
        if s is None:
            return 0
        edges = s.starts[s.families[self.first : self.last + 1]]
        return int((edges[1:] - edges[:-1]).max(initial=0))

    @cached_property
    def needs(self) -> RowShape:
        """What the row alone asks of a program."""
        labels = 1 if self.segments is None else self.segments.labels.shape[1]
        readouts = self.num_readouts + self.keep
        return RowShape(1, self.prefix, len(self.context), self.num_items, self.longest, readouts, labels)

    @cached_property
    def padded(self) -> RowShape:
        """The rungs that hold it."""
        return bucket(self.needs)


@dataclass(frozen=True)
class Batch:
    """`numbers` is all of it with the prefixes' lengths, one part after another, where the parts are views of it."""

    rows: Rows
    labels: np.ndarray  # [rows, readouts, labels]
    numbers: np.ndarray | None = None


def sizes(shape: RowShape) -> tuple[tuple[int, ...], ...]:
    """Of what a program is told: tokens, segments, parents, positions, read-outs, labels, lengths of prefixes."""
    grid, readouts = (shape.rows, shape.tokens), (shape.rows, shape.readouts)
    return grid, grid, grid, grid, readouts, (*readouts, shape.labels), (shape.rows,)


def taken_apart(numbers: Any, shape: RowShape) -> list[Any]:
    """The parts of one array, in the order of `sizes`: a copy to the device costs a small request more than its bytes
    do."""
    parts, at = [], 0
    for size in sizes(shape):
        end = at + math.prod(size)
        parts.append(numbers[at:end].reshape(size))
        at = end
    return parts


def pack(plans: Sequence[RowPlan], shape: RowShape) -> Batch:
    numbers = np.zeros(sum(map(math.prod, sizes(shape))), np.int32)
    tokens, segment, parent, position, readouts, labels, prefixes = taken_apart(numbers, shape)
    segment.fill(PADDING)
    parent.fill(PADDING)
    for r, plan in enumerate(plans):
        c = len(plan.context)
        prefixes[r] = plan.prefix
        tokens[r, :c] = plan.context
        segment[r, :c] = parent[r, :c] = CONTEXT
        position[r, :c] = np.arange(plan.prefix, plan.prefix + c)
        # The context's last token: computed in this row, or the prefix's (one past the row's tokens).
        from_context = c - 1 if c else shape.tokens
        readouts[r] = from_context
        if plan.segments is None:
            continue
        at = slice(shape.context, shape.context + plan.num_items)
        _lay_out(plan, tokens[r, at], segment[r, at], parent[r, at], position[r, at])
        n = plan.num_readouts
        readouts[r, :n], labels[r, :n, : plan.segments.labels.shape[1]] = _read_outs(plan, shape, from_context)
    return Batch(Rows(tokens, Places(segment, parent, position), readouts), labels, numbers)


def _lay_out(plan: RowPlan, tokens: np.ndarray, segment: np.ndarray, parent: np.ndarray, position: np.ndarray) -> None:
    s = plan.segments
    assert s is not None
    begin, end = int(s.families[plan.first]), int(s.families[plan.last])
    starts = s.starts[begin : end + 1]
    base, lengths = int(starts[0]), starts[1:] - starts[:-1]
    tokens[:] = s.tokens[base : base + len(tokens)]
    segment[:] = np.arange(1, end - begin + 1).repeat(lengths)
    parent[:] = CONTEXT
    if end - begin > plan.last - plan.first:  # some families have branches
        above = s.parents[begin:end]
        parent[:] = np.where(above < 0, CONTEXT, above - begin + 1).repeat(lengths)
    # A segment's first token is at its offset after the context; the others follow.
    ahead = s.offsets[begin:end] - starts[:-1] + (base + plan.prefix + len(plan.context))
    position[:] = np.arange(len(tokens)) + ahead.repeat(lengths)


def _read_outs(plan: RowPlan, shape: RowShape, from_context: int) -> tuple[np.ndarray, np.ndarray]:
    s = plan.segments
    assert s is not None
    first = int(s.readout_starts[plan.first])
    which = slice(first, first + plan.num_readouts)
    at = s.readouts[which]
    base = int(s.starts[s.families[plan.first]])
    return np.where(at == FROM_CONTEXT, from_context, at + (shape.context - base)), s.labels[which]
