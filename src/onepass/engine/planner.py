"""Which mode a request runs in, why, and which sequences of tokens it becomes.

A sequence is a plain run of tokens, kept in pages while it is needed, with families of items that continue it. A mode
only decides what the sequences are; every mode runs the same programs:

    serial     one plain sequence per item, context and item, alone in its steps
    packed     the context and, in the same step, the items that continue it
    chunked    the context again for every `chunk_size` items
    extend     the context in steps of its own, then the items

Families longer than a step become plain sequences that continue the context. Filling steps is
`scheduling.batching`.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from onepass.engine.config import EngineConfig
from onepass.engine.encoding.encode import Encoded
from onepass.engine.encoding.ids import int_array
from onepass.engine.encoding.segments import FROM_CONTEXT, FamilyLimit, Segments, segments_of
from onepass.errors import DoesNotFit

NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class SequencePlan:
    """`tokens` in order, and families [first, last) of the request's segments after them. Read-outs among the tokens
    themselves have numbers [first_read, first_read + len(read_positions)), at ascending positions."""

    tokens: np.ndarray
    first: int = 0
    last: int = 0
    base: int = 0  # begins with so many tokens of the plan's first sequence, which are not in `tokens`
    keep: bool = False  # goes to the cache when it is computed
    read_positions: np.ndarray = field(default_factory=lambda: NONE)
    first_read: int = 0

    @property
    def length(self) -> int:
        return self.base + len(self.tokens)


@dataclass(frozen=True)
class Plan:
    """`apart`: the items of a sequence wait until a step has computed all of its tokens. `alone`: a step has nothing
    but one sequence of this plan. `max_families`: of a sequence, in one step."""

    mode: str
    reason: str
    segments: Segments
    sequences: list[SequencePlan]
    apart: bool = False
    alone: bool = False
    max_families: int | None = None


@dataclass(frozen=True)
class Planner:
    config: EngineConfig
    limit: FamilyLimit  # what the largest step holds
    pool_tokens: int  # what the pool holds of one sequence

    def plan(self, encoded: Encoded, cached: int = 0) -> Plan:
        """`cached` is how many of the context's tokens are in pages already."""
        mode: str = encoded.request.mode if encoded.request.mode != "auto" else self.config.mode
        reason = f"{mode} was asked for"
        if mode == "auto":
            mode, reason = self._choose(encoded, cached)
        segments = segments_of(encoded, self.limit, apart=mode == "serial")
        plan = getattr(self, f"_{mode}")(reason, int_array(encoded.context), segments)
        self.check_tokens(max((sequence.length for sequence in plan.sequences), default=0))
        return plan

    def prefill(self, ids: tuple[int, ...]) -> Plan:
        """A context alone, to be kept."""
        self.check_tokens(len(ids))
        none = np.zeros(0, np.int64)
        zero = np.zeros(1, np.int64)
        segments = Segments(none, zero, none, none, zero, none, zero, zero, none, none)
        return Plan("extend", "a context to keep", segments, [SequencePlan(int_array(ids), keep=True)])

    def check_tokens(self, tokens: int) -> None:
        if tokens > self.pool_tokens:
            raise DoesNotFit(
                f"a sequence of {tokens:,} tokens does not fit the pool of pages, which holds {self.pool_tokens:,}; "
                "a larger cache_bytes makes room",
                "query",
            )

    def _choose(self, encoded: Encoded, cached: int) -> tuple[str, str]:
        """The context and its items share a step unless the context is there already; no other way computes less."""
        context = len(encoded.context)
        if context and cached >= context:
            return "extend", f"all {context:,} context tokens are cached"
        held = f"{cached:,} of {context:,} context tokens cached" if cached else "context not cached"
        return "packed", f"context and items in one pass ({held})"

    def _serial(self, reason: str, context: np.ndarray, segments: Segments) -> Plan:
        sequences = [_plain(context, segments, f, 0) for f in range(segments.num_families)]
        return Plan("serial", reason, segments, sequences, alone=True)

    def _packed(self, reason: str, context: np.ndarray, segments: Segments) -> Plan:
        mask = "dense" if self.config.mask == "dense" else "segment"
        return Plan("packed", f"{reason}; mask {mask}", segments, self._shared(context, segments))

    def _extend(self, reason: str, context: np.ndarray, segments: Segments) -> Plan:
        limit = self.config.extend_batch_size
        return Plan(
            "extend", reason, segments, self._shared(context, segments),
            apart=True, alone=limit is not None, max_families=limit,
        )  # fmt: skip

    def _chunked(self, reason: str, context: np.ndarray, segments: Segments) -> Plan:
        size = self.config.chunk_size
        long = self._long(segments)
        sequences = []
        for first in range(0, segments.num_families, size):
            last = min(first + size, segments.num_families)
            sequences += _cut(context, segments, first, last, long, shared=False)
        count, items = sum(s.last > s.first for s in sequences), "1 item" if size == 1 else f"{size} items"
        return Plan("chunked", f"{reason}; {count} copies of the context, at most {items} each", segments, sequences)

    def _shared(self, context: np.ndarray, segments: Segments) -> list[SequencePlan]:
        """The context with its families, and the long ones after it."""
        if not segments.num_families:
            return []
        long = self._long(segments)
        return _cut(context, segments, 0, segments.num_families, long, shared=True)

    def _long(self, segments: Segments) -> np.ndarray:
        if segments.starts[-1] <= self.limit.tokens and segments.readout_starts[-1] <= self.limit.readouts:
            return NONE  # all of them together fit, as is usual
        readouts = np.diff(segments.readout_starts)
        return np.flatnonzero((segments.family_tokens() > self.limit.tokens) | (readouts > self.limit.readouts))


def _cut(
    context: np.ndarray, segments: Segments, first: int, last: int, long: np.ndarray, shared: bool
) -> list[SequencePlan]:
    """Families [first, last) after one context, without the long ones, each of which is a sequence of its own. They all
    begin with the first sequence's pages where it is `shared`."""
    inside = [int(f) for f in long if first <= f < last]
    edges = [first - 1, *inside, last]
    runs = [(a + 1, b) for a, b in pairwise(edges) if b > a + 1]
    base = len(context) if shared else 0
    if not runs and not base:
        return [_plain(context, segments, f, 0) for f in inside]
    head, *others = runs or [(first, first)]
    plans = [SequencePlan(context, *head, keep=base > 0)]
    plans += [SequencePlan(context[base:], *run, base=base) for run in others]
    return plans + [_plain(context, segments, f, base) for f in inside]


def _plain(context: np.ndarray, segments: Segments, family: int, base: int) -> SequencePlan:
    """A family of one segment after its context, as one run of tokens."""
    start, end = segments.starts[segments.families[[family, family + 1]]]
    first, last = segments.readout_starts[[family, family + 1]]
    at = segments.readouts[first:last]
    if base and (at == FROM_CONTEXT).any():
        base -= 1  # read at the context's last token, which is computed again
    positions = len(context) + np.where(at == FROM_CONTEXT, -1, at - start)
    tokens = np.concatenate([context[base:], segments.tokens[start:end]]).astype(np.int32)
    return SequencePlan(tokens, base=base, read_positions=positions, first_read=int(first))
