"""The rungs: which step programs a model has on a device. The whole set is known before the first request.

A program's identity is a rung of a step's total tokens; everything else about a step is data. Sizes that go with a rung
(read-outs, label pairs, page-table entries) are such that ordinary traffic is bounded by tokens alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from onepass.attention.base import StepShape

MAX_RUNGS = 8


@dataclass(frozen=True)
class Ladder:
    """Shapes from the smallest to the one that can serve everything."""

    shapes: tuple[StepShape, ...]

    @property
    def largest(self) -> StepShape:
        return self.shapes[-1]

    def rung(self, tokens: int, readouts: int, entries: int) -> StepShape:
        """The smallest that holds so much; the largest always does, for nobody puts more into a step."""
        fitting = (s for s in self.shapes if s.tokens >= tokens and s.readouts >= readouts and s.entries >= entries)
        return next(fitting, self.largest)


def ladder(most_tokens: int, rungs: Sequence[int], multiple: int, page: int, max_position: int) -> Ladder:
    """The given rungs below `most_tokens`, and that one, in multiples that the kernels take."""
    most = -(-most_tokens // multiple) * multiple
    sizes = {-(-size // multiple) * multiple for size in rungs if size < most}
    whole_context = -(-max_position // page)
    shapes = [_shape(tokens, page, whole_context) for tokens in sorted({*sizes, most})]
    assert len(shapes) <= MAX_RUNGS
    return Ladder(tuple(shapes))


def _shape(tokens: int, page: int, whole_context: int) -> StepShape:
    """Any rung has room for the longest context's pages, and for an eighth as many others as it has tokens."""
    readouts = -(-max(64, tokens // 4) // 64) * 64
    entries = -(-(whole_context + max(16, tokens // 8)) // 64) * 64
    return StepShape(tokens, readouts, max(64, tokens // 2), entries, page)
