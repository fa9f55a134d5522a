"""Parts of sequences into one flat step of padded arrays: the host side of a step, in numpy, ready to be sent.

A `Part` says which tokens and families of one sequence are in a step; `pack` lays them out one after another, in the
arrays of `programs.step_arrays`. What goes into a step is `scheduling.batching`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onepass.attention.base import NOWHERE, StepShape
from onepass.engine.encoding.segments import FROM_CONTEXT
from onepass.engine.job import Job
from onepass.engine.job import Sequence as JobSequence
from onepass.engine.programs.step_arrays import blank, views


@dataclass(frozen=True)
class Part:
    """Of one sequence: its tokens [start, stop), and families [first, last) after all of them. `again`: its last token
    is computed once more, to be read at."""

    job: Job
    sequence: JobSequence
    start: int
    stop: int
    first: int
    last: int
    again: bool

    @property
    def family_tokens(self) -> int:
        return int(self.job.family_edges[self.last] - self.job.family_edges[self.first])

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start + self.again + self.family_tokens

    @property
    def visible(self) -> int:
        """Tokens of the sequence that this part reads or writes in pages."""
        return self.stop if self.stop > self.start else self.sequence.plan.length


@dataclass(frozen=True)
class Reads:
    """What a part reads: its plan's pairs, which lie in order, and the read-out of the step that each is at."""

    pairs: slice
    at: np.ndarray


@dataclass(frozen=True)
class Packed:
    """`numbers` holds the whole step. `pair_at` and `labels` are those pairs that did not fit into it."""

    numbers: np.ndarray
    num_tokens: int
    num_readouts: int
    reads: list[Reads]  # of each part
    pair_at: np.ndarray
    labels: np.ndarray


def pack(parts: Sequence[Part], shape: StepShape) -> Packed:
    numbers = blank(shape).copy()
    layout = _Layout(numbers, shape)
    reads = [layout.add(part) for part in parts]
    return layout.finished(numbers, reads)


class _Layout:
    def __init__(self, numbers: np.ndarray, shape: StepShape) -> None:
        self._shape = shape
        (self._tokens, self._segment, self._parent, self._context, self._position, self._slots, self._first_entry,
         self._context_keys, self._first_own, self._page, self._page_context, self._page_start, self._page_length,
         self._readouts, self._pair_at, self._labels, self._counts) = views(numbers, shape)  # fmt: skip
        # Rows of a token's segment, parent and context: one number in all three, for the tokens of a sequence itself.
        self._owners = numbers[shape.tokens : 4 * shape.tokens].reshape(3, shape.tokens)
        self._token = self._entry = self._readout = self._sequence = 0
        self._next_segment = shape.tokens  # above every context's number
        self._pairs: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, part: Part) -> Reads:
        sequence, page = part.sequence, self._shape.page
        assert sequence.pages is not None
        number, entry = self._sequence, self._entry
        self._sequence += 1
        count = -(-part.visible // page)
        at = slice(entry, entry + count)
        self._page[at] = sequence.pages[:count]
        self._page_context[at] = number
        self._page_start[at] = np.arange(0, count * page, page)
        self._page_length[at] = page
        if count:
            self._page_length[entry + count - 1] = part.visible - (count - 1) * page
        self._entry += count
        begin = self._token
        last_token = NOWHERE  # of the sequence, in this step
        if part.stop > part.start:
            self._add_tokens(part, number, entry)
            last_token = self._token - 1
        if part.again:
            last_token = self._add_again(part, number, entry)
        families_at = self._token
        if part.last > part.first:
            self._add_families(part, number, entry)
        return self._add_reads(part, begin, last_token, families_at)

    def _add_tokens(self, part: Part, number: int, entry: int) -> None:
        page, start, stop = self._shape.page, part.start, part.stop
        at = slice(self._token, self._token + stop - start)
        position = np.arange(start, stop, dtype=np.int32)
        self._tokens[at] = _ids(part, start, stop)
        self._owners[:, at] = number
        self._position[at] = position
        assert part.sequence.pages is not None
        first = start // page  # the pages that are written: a few, each with all of its slots
        pages = np.array(part.sequence.pages[first : -(-stop // page)], np.int32)
        slots = np.add.outer(pages * page, np.arange(page, dtype=np.int32)).reshape(-1)
        self._slots[at] = slots[start - first * page : stop - first * page]
        self._first_entry[at] = entry
        self._context_keys[at] = position + 1  # `first_own` is the token after it, as of padding
        self._token += stop - start

    def _add_again(self, part: Part, number: int, entry: int) -> int:
        at, length = self._token, part.sequence.plan.length
        self._tokens[at] = _ids(part, length - 1, length)[0]
        self._owners[:, at] = number
        self._position[at] = length - 1
        self._first_entry[at], self._context_keys[at] = entry, length
        self._token += 1
        return at

    def _add_families(self, part: Part, number: int, entry: int) -> None:
        s, length = part.job.plan.segments, part.sequence.plan.length
        begin, end = int(s.families[part.first]), int(s.families[part.last])
        starts = s.starts[begin : end + 1]
        base, lengths = int(starts[0]), starts[1:] - starts[:-1]
        n = int(starts[-1]) - base
        at = slice(self._token, self._token + n)
        self._tokens[at] = s.tokens[base : base + n]
        segment = self._next_segment + np.arange(end - begin)
        parent: Any = number
        first_own = (self._token + starts[:-1] - base).repeat(lengths)
        if end - begin > part.last - part.first:  # some families have branches
            above = s.parents[begin:end]
            parent = np.where(above < 0, number, above - begin + self._next_segment).repeat(lengths)
            edges = s.starts[s.families[part.first : part.last + 1]]
            first_own = (self._token + edges[:-1] - base).repeat(edges[1:] - edges[:-1])
        # A segment's first token is at its offset after the context; the others follow.
        ahead = s.offsets[begin:end] - starts[:-1] + (base + length)
        self._segment[at], self._parent[at], self._context[at] = segment.repeat(lengths), parent, number
        self._position[at] = np.arange(n) + ahead.repeat(lengths)
        self._first_entry[at], self._context_keys[at], self._first_own[at] = entry, length, first_own
        self._next_segment += end - begin
        self._token += n

    def _add_reads(self, part: Part, begin: int, last_token: int, families_at: int) -> Reads:
        s = part.job.plan.segments
        context_end = NOWHERE
        if part.last == part.first:
            first, tokens, among = plain_reads(part)
            at = begin + tokens - part.start
        else:
            first, last = int(s.readout_starts[part.first]), int(s.readout_starts[part.last])
            tokens = s.readouts[first:last]
            among = last - first
            base = int(s.starts[s.families[part.first]])
            at = tokens + (families_at - base)
            if part.job.context_edges[part.last] > part.job.context_edges[part.first]:
                context_end = last_token
                at = np.where(tokens == FROM_CONTEXT, last_token, at)
        starts = s.pair_starts[first : first + among + 1]
        pairs = slice(int(starts[0]), int(starts[-1]))
        readout = self._add_readouts(at, context_end)
        which = readout.repeat(starts[1:] - starts[:-1])
        self._pairs.append((which, s.labels[pairs]))
        return Reads(pairs, which)

    def _add_readouts(self, at: np.ndarray, context_end: int) -> np.ndarray:
        """The numbers of the step's read-outs at these tokens, which are ascending but for those at the context's end:
        of these there may be thousands, and they are one, before the others."""
        start = self._readout
        if context_end != NOWHERE and (from_context := at == context_end).any():
            others = at[~from_context]
            number = np.where(from_context, start, start + np.cumsum(~from_context))
            at = np.concatenate([[context_end], others])
        else:
            number = np.arange(start, start + len(at))
        self._readouts[start : start + len(at)] = at
        self._readout += len(at)
        return number

    def finished(self, numbers: np.ndarray, reads: list[Reads]) -> Packed:
        if self._readout:
            self._readouts[self._readout :] = self._readouts[self._readout - 1]
        self._counts[:] = self._token, self._readout
        at, labels = self._joined_pairs()
        room = self._shape.pairs
        self._pair_at[: min(room, len(at))] = at[:room]
        self._labels[: min(room, len(at))] = labels[:room]
        return Packed(numbers, self._token, self._readout, reads, at[room:], labels[room:])

    def _joined_pairs(self) -> tuple[np.ndarray, np.ndarray]:
        if len(self._pairs) == 1:
            return self._pairs[0]
        none = (np.zeros(0, np.int64), np.zeros(0, np.int32))
        at, labels = (np.concatenate(column) for column in zip(none, *self._pairs, strict=True))
        return at, labels


def plain_reads(part: Part) -> tuple[int, np.ndarray, int]:
    """Read-outs among a part's own tokens: the first one's number, their positions, and how many."""
    positions = part.sequence.plan.read_positions
    low, high = (int(n) for n in np.searchsorted(positions, (part.start, part.stop)))
    return part.sequence.plan.first_read + low, positions[low:high], high - low


def _ids(part: Part, start: int, stop: int) -> np.ndarray:
    """Tokens at positions of the sequence, of which the beginning may be the first sequence's."""
    plan = part.sequence.plan
    if start >= plan.base:
        return plan.tokens[start - plan.base : stop - plan.base]
    whole = np.concatenate([part.job.plan.sequences[0].tokens[: plan.base], plan.tokens])
    return whole[start:stop]
