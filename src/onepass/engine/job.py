"""A request on its way: what is left to run, what has been read out, and the future its caller holds.

Choosing what runs next is `steps`; the result's numbers are made in `readout`.
"""

import time
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from onepass.api import ScoreResult, Timings, Usage
from onepass.engine.contexts import KeptContext
from onepass.engine.encode import Encoded, Ids
from onepass.engine.plan import Plan
from onepass.engine.readout import ReadOut, Told, result_of
from onepass.loading.model import Model


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
    future: "Future[ScoreResult]" = field(default_factory=Future)
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
        self._left = np.concatenate([np.cumsum(row_tokens[::-1])[::-1], [0]])

    @property
    def needs_context(self) -> bool:
        return self.plan.prefill and self.context is None

    @property
    def tokens_left(self) -> int:
        extra = len(self.encoded.context) if self.needs_context else 0
        return int(self._left[self.next_row]) + extra

    @property
    def done(self) -> bool:
        return self.next_row == len(self.plan.rows) and not self.rows_out

    def store(self, row: int, logits: np.ndarray, logsumexp: np.ndarray) -> None:
        plan = self.plan.rows[row]
        starts = self.plan.segments.readout_starts
        at = slice(starts[plan.first], starts[plan.last])
        n = plan.num_readouts
        self.logits[at] = logits[:n, : self.logits.shape[1]]
        self.logsumexp[at] = logsumexp[:n]

    def finish(self, model: Model) -> None:
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
        told = Told(model.name, self.plan.mode, self.plan.reason, usage, timings)
        try:
            self.future.set_result(result_of(self.encoded, ReadOut(self.logits, self.logsumexp), told, model.tokenizer))
        except BaseException as error:  # the worker must outlive any one request
            self.future.set_exception(error)
