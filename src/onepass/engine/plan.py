"""Which mode a request runs in, why, and which families go in which row.

Forced modes are honoured or refused, never swapped. Which rows of which requests share a step is `engine`'s choice;
padding is `buckets`' and `pack`'s.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from onepass.attention.base import RowShape
from onepass.engine.config import Device, EngineConfig
from onepass.engine.encode import Encoded
from onepass.engine.ids import int_array
from onepass.engine.pack import RowPlan
from onepass.engine.segments import Segments, segments_of
from onepass.engine.work import Work
from onepass.errors import DoesNotFit


@dataclass(frozen=True)
class Plan:
    """`attention` names an implementation; `prefill` says the context is computed apart and kept before the rows."""

    mode: str
    reason: str
    attention: str
    segments: Segments
    rows: list[RowPlan]
    prefill: bool = False
    keep: bool = False  # the rows compute the context themselves and leave its keys in the cache
    alone: bool = False  # a row is a step of its own


@dataclass(frozen=True)
class Planner:
    config: EngineConfig
    device: Device
    work: Work

    def plan(self, encoded: Encoded, cached: int = 0) -> Plan:
        """`cached` is how many of the context's tokens are on the device already."""
        forced = encoded.request.mode if encoded.request.mode != "auto" else self.config.mode
        mode, reason = (forced, f"{forced} was asked for") if forced != "auto" else self._choose(encoded, cached)
        segments = segments_of(encoded, apart=mode == "serial")
        context = int_array(encoded.context)
        plan = getattr(self, f"_{mode}")(reason, context, segments)
        self._check_fits(plan)
        return plan

    def _serial(self, reason: str, context: np.ndarray, segments: Segments) -> Plan:
        rows = [RowPlan(context, 0, segments, f, f + 1) for f in range(segments.num_families)]
        return Plan("serial", reason, "reference", segments, rows, alone=True)

    def _packed(self, reason: str, context: np.ndarray, segments: Segments) -> Plan:
        tokens = len(context) + len(segments.tokens)
        mask = self.config.mask
        if mask == "auto":
            mask = "dense" if tokens <= self.config.dense_mask_tokens else "segment"
            reason += f"; mask {mask}: {tokens:,} tokens, threshold {self.config.dense_mask_tokens:,}"
        else:
            reason += f"; mask {mask} was asked for"
        keep = bool(len(context)) and mask == "segment"
        rows = [RowPlan(context, 0, segments, 0, segments.num_families, keep)] if segments.num_families else []
        return Plan("packed", reason, "dense" if mask == "dense" else "cascade", segments, rows, keep=keep)

    def _chunked(self, reason: str, context: np.ndarray, segments: Segments) -> Plan:
        size = self.config.chunk_size
        edges = range(0, segments.num_families, size)
        rows = [RowPlan(context, 0, segments, f, min(f + size, segments.num_families)) for f in edges]
        return Plan("chunked", f"{reason}; {len(rows)} rows of at most {size}", "cascade", segments, rows)

    def _extend(self, reason: str, context: np.ndarray, segments: Segments) -> Plan:
        none = context[:0]
        limit = self.config.extend_batch_size
        rows = [
            RowPlan(none, len(context), segments, first, last)
            for first, last in fill(segments.family_tokens(), _need(self.config.max_batch_tokens), limit)
        ]
        return Plan("extend", reason, "cascade", segments, rows, prefill=bool(len(context)), alone=limit is not None)

    def _choose(self, encoded: Encoded, cached: int) -> tuple[str, str]:
        """The cheapest by the cost model; serial is never cheaper and is not considered."""
        context, items = len(encoded.context), list(map(len, encoded.items))
        branches = sum(len(c) - 1 for c in encoded.continuations)
        total = sum(items) + branches * len(items)
        seen = float(max(items, default=0) + branches)
        most = _need(self.config.max_batch_tokens)
        seconds = {"extend": self._extend_seconds(context, cached, total, seen, most)}
        if context + total <= most and not cached:
            flops = self.work.flops(0, context, total, seen)
            seconds["packed"] = self.work.seconds(flops, 1, self.device)
        chunks = max(1, -(-len(items) // self.config.chunk_size))
        flops = self.work.flops(0, context * chunks, total, seen)
        steps = max(1, -(-(context * chunks + total) // most))
        seconds["chunked"] = self.work.seconds(flops, steps, self.device)
        best = min(seconds, key=seconds.__getitem__)
        costs = ", ".join(f"{mode} {1e3 * s:.1f} ms" for mode, s in sorted(seconds.items(), key=lambda kv: kv[1]))
        held = f"{cached:,} of {context:,} context tokens cached" if cached else "context not cached"
        return best, f"{best} is the cheapest by estimate ({costs}; {held})"

    def _extend_seconds(self, context: int, cached: int, total: int, seen: float, most: int) -> float:
        fresh = context - cached
        steps = -(-fresh // most) + max(1, -(-total // most))
        flops = self.work.flops(cached, fresh, 0, 0) + self.work.flops(context, 0, total, seen)
        return self.work.seconds(flops, steps, self.device)

    def _check_fits(self, plan: Plan) -> None:
        if not plan.rows:
            return
        # Rows grow with their tokens; the largest one decides.
        largest = max(plan.rows, key=lambda row: row.num_items + len(row.context))
        self.check_shape(largest.padded, plan.attention == "dense", plan.mode)

    def fits(self, shape: RowShape, dense: bool) -> bool:
        return self._needed_bytes(shape, dense) <= _need(self.config.memory_bytes)

    @cached_property
    def _needed_bytes(self) -> Callable[[RowShape, bool], int]:
        """Of a shape, and whether its mask is dense. Remembered: shapes are few, and each step asks several times."""

        def needed(shape: RowShape, dense: bool) -> int:
            return self.work.weight_bytes + self.work.step_bytes(shape, dense) + self.work.context_bytes(shape.prefix)

        return lru_cache(maxsize=256)(needed)

    def check_shape(self, shape: RowShape, dense: bool, what: str) -> None:
        needed, there = self._needed_bytes(shape, dense), _need(self.config.memory_bytes)
        if needed > there:
            raise DoesNotFit(
                f"mode {what} needs about {needed / 2**30:.2f} GiB for a row of {shape.tokens:,} tokens "
                f"(prefix {shape.prefix:,}); there are {there / 2**30:.2f} GiB",
                "items",
            )


def fill(tokens: np.ndarray, most: int, most_families: int | None) -> list[tuple[int, int]]:
    """Families in order into rows of at most `most` tokens; one longer than that gets a row of its own."""
    ends = np.cumsum(tokens)
    rows, first = [], 0
    while first < len(tokens):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        if most_families is not None:
            last = min(last, first + most_families)
        # Empty families cost no tokens but a read-out each: bound them too.
        last = min(last, first + most, len(tokens))
        rows.append((first, last))
        first = last
    return rows


def _need(value: int | None) -> int:
    assert value is not None, "the config was not decided for a device"
    return value
