"""Filling a step: a budget of tokens, read-outs and page-table entries, and what a sequence can put into what is left.

Whose turn it is and where pages come from is `scheduler`; laying a filled step out in arrays is `packing`.
"""

import numpy as np

from onepass.attention.base import StepShape
from onepass.engine.job import Job, Sequence
from onepass.engine.packing import Part

FEW_TOKENS = 4  # room not worth looking for somebody who fits


class Batch:
    """The parts of step number `step`, bounded by the largest program."""

    def __init__(self, shape: StepShape, step: int) -> None:
        self.step = step
        self.parts: list[Part] = []
        self.tokens = self.readouts = self.entries = 0
        self._shape = shape
        self._closed = False

    @property
    def full(self) -> bool:
        return self._closed or self._shape.tokens - self.tokens < FEW_TOKENS

    def add(self, job: Job, sequence: Sequence) -> bool:
        """As much of a started sequence as fits; False where nothing does."""
        if job.plan.alone and self.parts:
            return False
        part = self._part(job, sequence)
        if part is None:
            return False
        self.parts.append(part)
        self.tokens += part.num_tokens
        self.entries += self._entries(part.visible)
        self.readouts += _num_readouts(part)
        self._closed = job.plan.alone
        return True

    def _part(self, job: Job, sequence: Sequence) -> Part | None:
        plan = sequence.plan
        start, stop = sequence.done, self._stop(sequence)
        first = last = sequence.next_family
        again = False
        waits = job.plan.apart and (stop > start or sequence.computed_in == self.step)
        if stop == plan.length and last < plan.last and not waits:
            last, again = self._families(job, sequence, stop - start)
        if stop == start and last == first:
            return None
        return Part(job, sequence, start, stop, first, last, again)

    def _stop(self, sequence: Sequence) -> int:
        """How far the sequence's own tokens can be computed in this step."""
        plan, start = sequence.plan, sequence.done
        room = (self._shape.entries - self.entries) * self._shape.page
        stop = min(plan.length, start + self._shape.tokens - self.tokens, room)
        left = self._shape.readouts - self.readouts
        if len(plan.read_positions) > left:
            reads = plan.read_positions[np.searchsorted(plan.read_positions, start) :]
            if len(reads) > left:
                stop = min(stop, int(reads[left]))
        return max(start, stop)

    def _families(self, job: Job, sequence: Sequence, taken: int) -> tuple[int, bool]:
        """The family after the last one that fits behind `taken` tokens of their sequence, and whether its last token
        must be computed again to be read at."""
        first, plan = sequence.next_family, sequence.plan
        if not taken and self._entries(plan.length) > self._shape.entries - self.entries:
            return first, False
        most = plan.last if job.plan.max_families is None else min(plan.last, first + job.plan.max_families)
        tokens = self._shape.tokens - self.tokens - taken
        readouts = self._shape.readouts - self.readouts

        def reach(tokens: int, readouts: int) -> int:
            return _reach(job.read_edges, first, readouts, _reach(job.family_edges, first, tokens, most))

        def at_end(last: int) -> bool:
            """Whether one of the families up to `last` is read at the sequence's end."""
            return bool(job.context_edges[last] > job.context_edges[first])

        last = reach(tokens, readouts)
        if at_end(last):
            # One more read-out, and one more token where the end is computed again; or only those before it.
            before = int(np.searchsorted(job.context_edges, job.context_edges[first], side="right")) - 1
            last = max(reach(tokens - (not taken), readouts - 1), min(last, before))
        return last, not taken and at_end(last)

    def _entries(self, tokens: int) -> int:
        return -(-tokens // self._shape.page)


def _reach(edges: np.ndarray, first: int, room: int, most: int) -> int:
    """How far families can be taken from `first` on within `room` of what `edges` count, up to `most`."""
    if room < 0:
        return first
    if edges[most] - edges[first] <= room:  # all of them, as is usual
        return most
    return min(most, int(np.searchsorted(edges, edges[first] + room, side="right")) - 1)


def _num_readouts(part: Part) -> int:
    job = part.job
    if part.last == part.first:
        low, high = np.searchsorted(part.sequence.plan.read_positions, (part.start, part.stop))
        return int(high - low)
    at_end = int(job.context_edges[part.last] > job.context_edges[part.first])
    return int(job.read_edges[part.last] - job.read_edges[part.first]) + at_end
