"""A request on its way: what is left to run, what has been read out, and the future its caller holds.

Cancelling the future takes the request off the device: its next step does not run. Choosing what runs next is `steps`;
the result's numbers are made in `readout`.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from onepass.api import Timings, Usage
from onepass.engine.contexts import KeptContext
from onepass.engine.encode import Encoded
from onepass.engine.ids import Ids
from onepass.engine.plan import Plan
from onepass.engine.readout import ReadOut, Told


@dataclass(frozen=True)
class Share:
    """Whose request it is and how urgent: tenants get equal shares of the device, and among a tenant's own requests a
    lower `priority` goes first."""

    tenant: str = ""
    priority: int = 0


@dataclass(frozen=True)
class Answered:
    """What the device read out for a request, and how it was computed: `readout.result_of` makes a result of it."""

    read: ReadOut
    told: Told


# Called as rows of a job are read out: the first and the last family's number, and what was read for them.
OnRows = Callable[[int, int, ReadOut], None]


@dataclass
class Spent:
    """Sums over the steps a job took part in."""

    device_seconds: float = 0.0
    flops_needed: float = 0.0
    flops_done: float = 0.0
    compilations: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0


@dataclass(eq=False)
class PrefillJob:
    """A context to compute and keep, with no items."""

    ids: Ids
    future: "Future[KeptContext]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.perf_counter)
    partial: KeptContext | None = None  # a long context is computed in several steps
    spent: Spent = field(default_factory=Spent)
    share: Share = field(default_factory=Share)
    wanted_by: "list[Future[Any]]" = field(default_factory=list)  # whoever waits for it; itself if nobody else

    @property
    def abandoned(self) -> bool:
        return all(future.cancelled() for future in self.wanted_by or [self.future])

    @property
    def tokens_left(self) -> int:
        return len(self.ids) - (len(self.partial.ids) if self.partial else 0)


@dataclass(eq=False)
class Job:
    encoded: Encoded
    plan: Plan
    context: KeptContext | None
    began: float
    arrived: float
    share: Share = field(default_factory=Share)
    on_rows: OnRows | None = None
    future: "Future[Answered]" = field(default_factory=Future)
    prefill: PrefillJob | None = None
    next_row: int = 0
    rows_out: int = 0  # launched, not yet collected
    started: float | None = None
    spent: Spent = field(default_factory=Spent)

    def __post_init__(self) -> None:
        readouts, labels = self.plan.segments.labels.shape
        self.logits = np.zeros((readouts, labels), np.float32)
        self.logsumexp = np.zeros(readouts, np.float32)
        row_tokens = [row.num_items + len(row.context) for row in self.plan.rows]
        self._left = list(accumulate(reversed(row_tokens), initial=0))[::-1]

    @property
    def needs_context(self) -> bool:
        return self.plan.prefill and self.context is None

    @property
    def tokens_left(self) -> int:
        extra = len(self.encoded.context) if self.needs_context else 0
        return self._left[self.next_row] + extra

    @property
    def done(self) -> bool:
        return self.next_row == len(self.plan.rows) and not self.rows_out

    def store(self, row: int, logits: np.ndarray, logsumexp: np.ndarray | None) -> None:
        plan = self.plan.rows[row]
        start, n = int(self.plan.segments.readout_starts[plan.first]), plan.num_readouts
        at = slice(start, start + n)
        self.logits[at] = logits[:n, : self.logits.shape[1]]
        if logsumexp is not None:
            self.logsumexp[at] = logsumexp[:n]
        if self.on_rows is not None and not self.future.done():
            self.on_rows(plan.first, plan.last, ReadOut(self.logits[at], self.logsumexp[at]))

    def finish(self, model: str) -> None:
        now = time.perf_counter()
        spent = self.spent
        started = now if self.started is None else self.started
        timings = Timings(
            encode_ms=1e3 * (self.arrived - self.began),
            queue_ms=1e3 * (started - self.arrived),
            device_ms=1e3 * spent.device_seconds,
            total_ms=1e3 * (now - self.began),
            padding_ratio=spent.flops_done / spent.flops_needed if spent.flops_needed else 1.0,
            compilations=spent.compilations,
        )
        usage = Usage(self.encoded.prompt_tokens, spent.cached_tokens, spent.computed_tokens)
        told = Told(model, self.plan.mode, self.plan.reason, usage, timings)
        settle(self.future, Answered(ReadOut(self.logits, self.logsumexp), told))


def settle(future: "Future[Any]", outcome: Any) -> None:
    """Give a future its result or its error, unless its caller has cancelled it (which may happen at any moment)."""
    if future.done() or not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
