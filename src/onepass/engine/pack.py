"""Families of segments into padded rows: the host side of a step, in numpy, ready to be sent to the device.

A `RowPlan` says which families of which request make one row; `pack` lays them out. What goes in which row is `plan`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from onepass.attention.base import RowShape
from onepass.attention.places import CONTEXT, PADDING, Places
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

    @property
    def num_items(self) -> int:
        """Item and branch tokens in the row."""
        s = self.segments
        return 0 if s is None else int(s.starts[s.families[self.last]] - s.starts[s.families[self.first]])

    @property
    def num_readouts(self) -> int:
        s = self.segments
        return 1 if s is None else int(s.readout_starts[self.last] - s.readout_starts[self.first])

    @property
    def longest(self) -> int:
        s = self.segments
        return 0 if s is None else int(s.family_tokens()[self.first : self.last].max(initial=0))

    @cached_property
    def needs(self) -> RowShape:
        """What the row alone asks of a program."""
        labels = 1 if self.segments is None else self.segments.labels.shape[1]
        readouts = self.num_readouts + self.keep
        return RowShape(1, self.prefix, len(self.context), self.num_items, self.longest, readouts, labels)


@dataclass(frozen=True)
class Batch:
    rows: Rows
    labels: np.ndarray  # [rows, readouts, labels]


def pack(plans: Sequence[RowPlan], shape: RowShape) -> Batch:
    tokens = np.zeros((shape.rows, shape.tokens), np.int32)
    segment = np.full((shape.rows, shape.tokens), PADDING, np.int32)
    parent = np.full((shape.rows, shape.tokens), PADDING, np.int32)
    position = np.zeros((shape.rows, shape.tokens), np.int32)
    readouts = np.zeros((shape.rows, shape.readouts), np.int32)
    labels = np.zeros((shape.rows, shape.readouts, shape.labels), np.int32)
    for r, plan in enumerate(plans):
        c = len(plan.context)
        tokens[r, :c] = plan.context
        segment[r, :c] = parent[r, :c] = CONTEXT
        position[r, :c] = plan.prefix + np.arange(c)
        # The context's last token: computed in this row, or the prefix's (one past the row's tokens).
        from_context = c - 1 if c else shape.tokens
        readouts[r] = from_context
        if plan.segments is None:
            continue
        at = slice(shape.context, shape.context + plan.num_items)
        _lay_out(plan, tokens[r, at], segment[r, at], parent[r, at], position[r, at])
        n = plan.num_readouts
        readouts[r, :n], labels[r, :n, : plan.segments.labels.shape[1]] = _read_outs(plan, shape, from_context)
    return Batch(Rows(tokens, Places(segment, parent, position), readouts), labels)  # type: ignore[arg-type]


def _lay_out(plan: RowPlan, tokens: np.ndarray, segment: np.ndarray, parent: np.ndarray, position: np.ndarray) -> None:
    s = plan.segments
    assert s is not None
    begin, end = s.families[plan.first], s.families[plan.last]
    lengths = np.diff(s.starts[begin : end + 1])
    number = np.arange(1, end - begin + 1)
    above = s.parents[begin:end]
    base = s.starts[begin]
    tokens[:] = s.tokens[base : s.starts[end]]
    segment[:] = np.repeat(number, lengths)
    parent[:] = np.repeat(np.where(above < 0, CONTEXT, above - begin + 1), lengths)
    within = np.arange(len(tokens)) - np.repeat(s.starts[begin:end] - base, lengths)
    position[:] = plan.prefix + len(plan.context) + np.repeat(s.offsets[begin:end], lengths) + within


def _read_outs(plan: RowPlan, shape: RowShape, from_context: int) -> tuple[np.ndarray, np.ndarray]:
    s = plan.segments
    assert s is not None
    which = slice(s.readout_starts[plan.first], s.readout_starts[plan.last])
    at = s.readouts[which]
    base = s.starts[s.families[plan.first]]
    return np.where(at == FROM_CONTEXT, from_context, at - base + shape.context), s.labels[which]
