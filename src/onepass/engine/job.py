"""A request on its way: its sequences, what is left of them, what has been read, and the future its caller holds.

Cancelling the future takes the request off the device: its next step does not run. What runs next is
`scheduling.scheduler`; the result's numbers are made in `readout`.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onepass.api import Timings, Usage
from onepass.engine.contexts.cache import CachedContext
from onepass.engine.encoding.encode import Encoded
from onepass.engine.encoding.ids import Ids
from onepass.engine.encoding.segments import FROM_CONTEXT, item_starts
from onepass.engine.planner import Plan, SequencePlan
from onepass.engine.readout import ReadOut, RunInfo
from onepass.engine.trace.recorder import TraceRecorder


@dataclass(frozen=True)
class Tenant:
    """Whose request it is and how urgent: tenants get equal shares of the device, and among a tenant's own requests a
    lower `priority` goes first."""

    tenant: str = ""
    priority: int = 0


@dataclass(frozen=True)
class JobOutput:
    """What the device read out for a request, and how it was computed: `readout.result_of` makes a result of it."""

    read: ReadOut
    info: RunInfo


# Called as items of a job are read out: the first item, the one after the last, and what was read for them.
OnItems = Callable[[int, int, ReadOut], None]


@dataclass
class JobStats:
    """Sums over the steps a job took part in."""

    device_seconds: float = 0.0
    flops_needed: float = 0.0
    flops_done: float = 0.0
    compilations: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0


@dataclass(eq=False)
class Sequence:
    """A planned sequence as it is computed. `pages` is None until it is started."""

    plan: SequencePlan
    pages: list[int] | None = None
    done: int = 0  # tokens whose keys are in pages once all launched steps have run
    computed_in: int = -1  # the last step that computes tokens of it
    held: bool = False  # its pages are held for the job
    next_family: int = field(init=False)

    def __post_init__(self) -> None:
        self.next_family = self.plan.first

    @property
    def tokens_left(self) -> int:
        return self.plan.length - max(self.done, self.plan.base)

    @property
    def exhausted(self) -> bool:
        return self.pages is not None and self.done == self.plan.length and self.next_family == self.plan.last


@dataclass(eq=False)
class Job:
    """`encoded` is None of a context that is only to be kept: `ids` are its tokens."""

    plan: Plan
    ids: Ids
    began: float
    arrived: float
    encoded: Encoded | None = None
    share: Tenant = field(default_factory=Tenant)
    on_items: OnItems | None = None
    handle: CachedContext | None = None  # its pages are held for this job since it came
    future: "Future[Any]" = field(default_factory=Future)
    current: int = 0  # the first sequence that is not exhausted
    parts_out: int = 0  # launched, not yet collected
    started: float | None = None
    stats: JobStats = field(default_factory=JobStats)
    failed: bool = False

    def __post_init__(self) -> None:
        self.sequences = [Sequence(plan) for plan in self.plan.sequences]
        traced = self.encoded is not None and self.encoded.request.return_trace
        self.trace = TraceRecorder() if traced else None
        segments = self.plan.segments
        self.family_edges = segments.starts[segments.families]  # [families + 1] tokens before each family
        self.read_edges = segments.readout_starts  # [families + 1] read-outs among items before it
        if (from_context := segments.readouts == FROM_CONTEXT).any():
            self.read_edges = np.concatenate([[0], np.cumsum(~from_context)])[segments.readout_starts]
        self.context_edges = segments.readout_starts - self.read_edges  # and at the context's end
        count = len(segments.targets)
        self.logits, self.logsumexp = np.zeros(count, np.float32), np.zeros(count, np.float32)
        self.best = np.zeros((2, count), np.float32) if self._reads_best else None
        self.tokens_left = sum(s.tokens_left for s in self.sequences) + len(segments.tokens) - self._plain_tokens()
        if self.on_items is not None and self.encoded is not None:
            self._item_starts = item_starts(self.encoded)
            self._pairs_left = np.diff(self._item_starts)
            self._unread = np.ones(count, bool)  # a sequence that begins again reads twice

    def _plain_tokens(self) -> int:
        """Item tokens that are counted with their own sequences."""
        with_families = sum(int(self.family_edges[p.last] - self.family_edges[p.first]) for p in self.plan.sequences)
        return len(self.plan.segments.tokens) - with_families

    @property
    def whole_vocabulary(self) -> bool:
        return self.encoded is not None and self.encoded.whole_vocabulary

    @property
    def _reads_best(self) -> bool:
        """Whether continuations are compared with the most likely tokens; labels are not."""
        return self.encoded is not None and any(self.encoded.continuations)

    @property
    def launched(self) -> bool:
        """Whether nothing is left to launch."""
        return self.failed or self.current == len(self.sequences)

    @property
    def done(self) -> bool:
        return self.launched and not self.parts_out

    def store(self, pairs: slice, logits: np.ndarray, vocabulary: np.ndarray | None) -> None:
        """What was read for some of the plan's pairs, which lie in order; `vocabulary` as in `StepOutput`."""
        targets = self.plan.segments.targets[pairs]
        self.logits[targets] = logits
        if vocabulary is not None:
            self.logsumexp[targets] = vocabulary[0]
            if self.best is not None:
                self.best[:, targets] = vocabulary[1:]
        if self.on_items is not None and not self.future.done():
            self._tell_items(targets)

    def _tell_items(self, targets: np.ndarray) -> None:
        assert self.on_items is not None
        targets = targets[self._unread[targets]]
        self._unread[targets] = False
        items, counts = np.unique(np.searchsorted(self._item_starts, targets, side="right") - 1, return_counts=True)
        self._pairs_left[items] -= counts
        ready = items[self._pairs_left[items] == 0]
        for run in np.split(ready, np.flatnonzero(np.diff(ready) != 1) + 1) if len(ready) else ():
            first, last = int(run[0]), int(run[-1]) + 1
            start, end = int(self._item_starts[first]), int(self._item_starts[last])
            self.on_items(first, last, self._read.part(start, end))

    @property
    def _read(self) -> ReadOut:
        return ReadOut(self.logits, self.logsumexp, self.best)

    def finish(self, model: str, replica: int = 0) -> None:
        now = time.perf_counter()
        stats = self.stats
        started = now if self.started is None else self.started
        if self.encoded is None:
            settle(self.future, self.ids)
            return
        timings = Timings(
            encode_ms=1e3 * (self.arrived - self.began),
            queue_ms=1e3 * (started - self.arrived),
            device_ms=1e3 * stats.device_seconds,
            total_ms=1e3 * (now - self.began),
            padding_ratio=stats.flops_done / stats.flops_needed if stats.flops_needed else 1.0,
            compilations=stats.compilations,
        )
        usage = Usage(self.encoded.prompt_tokens, stats.cached_tokens, stats.computed_tokens)
        trace = None if self.trace is None else self.trace.finished(replica)
        info = RunInfo(model, self.plan.mode, self.plan.reason, usage, timings, trace)
        settle(self.future, JobOutput(self._read, info))


def settle(future: "Future[Any]", outcome: Any) -> None:
    """Give a future its result or its error, unless its caller has cancelled it (which may happen at any moment)."""
    if future.done() or not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
