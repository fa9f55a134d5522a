"""What the device does next: steps filled from the queue, launched, and collected.

A step is a budget of tokens. Parts of contexts, items and branches of any requests share it, the most urgent request's
first (`fairness`). The device runs steps in the order of their launch, so a sequence counts as computed once its last
step is launched: items may follow in the next one. A step that fails fails its own requests only.

Every page that a step reads or writes is held from its launch until it is collected.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass, field

import numpy as np

from onepass.attention.base import StepShape
from onepass.engine.batching import Batch
from onepass.engine.contexts.cache import CachedContext, ContextCache
from onepass.engine.contexts.pages import PagePool
from onepass.engine.cost_model import CostModel
from onepass.engine.encoding.ids import Ids
from onepass.engine.fairness import FairQueue
from onepass.engine.job import Job, Sequence, settle
from onepass.engine.packing import Packed, Part, pack
from onepass.engine.programs.ladder import Ladder
from onepass.engine.runner import Runner, StepOutput
from onepass.engine.trace.step import CollectedStep, record
from onepass.errors import DoesNotFit

# The part of a step's time after which the next one is looked for, so that it can be launched before the end; in steps
# that are short, so many seconds before it.
NEARLY = 0.7
LAUNCH_SECONDS = 0.003
SIZES = 8  # a rung's steps are timed by eighths of its tokens


@dataclass(frozen=True)
class InFlightStep:
    number: int  # since the engine started
    shape: StepShape
    parts: list[Part]
    packed: Packed
    output: StepOutput
    pages: list[int]  # held for it
    contexts: list[CachedContext]  # that it completes
    launched: float
    at: float  # when it was given to the device: after what had to be compiled
    compilations: int


@dataclass
class EngineStats:
    """Sums over every step since the start, for those who watch."""

    steps: int = 0
    rows: int = 0
    tokens: int = 0
    device_seconds: float = 0.0
    flops_done: float = 0.0
    flops_needed: float = 0.0
    hit_tokens: int = 0


@dataclass
class _Filling:
    """What a batch needs besides its parts."""

    batch: Batch
    copies: list[tuple[int, int]] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)


class Scheduler:
    def __init__(
        self,
        ladder: Ladder,
        cost: CostModel,
        contexts: ContextCache,
        pool: PagePool,
        runner: Runner,
        copies_early: bool,
        computed_tokens: Callable[[StepShape, int], int],
    ) -> None:
        """`copies_early`: results are copied to the host without being asked for. `computed_tokens` are those of a step
        with so many real ones, padding included."""
        self.max_tokens = ladder.largest.tokens
        self._ladder = ladder
        self._cost = cost
        self._contexts = contexts
        self._pool = pool
        self._runner = runner
        self._copies_early = copies_early
        self._computed_tokens = computed_tokens
        self._jobs: list[Job] = []
        self._computing: dict[Ids, Job] = {}  # whose step will bring a context that others may want
        self._shares = FairQueue(self.max_tokens)
        self._number = 0
        self._launched = 0
        self._out = 0  # steps on the device
        self._last_ready = 0.0
        self._took: dict[tuple[int, int], float] = {}  # the least seconds of a step and its launch, by size
        self._pool_since = 0.0  # handles from before that name pages of a pool that is gone
        self.totals = EngineStats()

    @property
    def waiting(self) -> bool:
        return any(not job.launched for job in self._jobs)

    @property
    def waiting_tokens(self) -> int:
        return sum(job.tokens_left for job in self._jobs)

    @property
    def oldest_arrival(self) -> float:
        """Arrival time of the oldest waiting request. Contexts that are only to be kept do not count."""
        return min((job.arrived for job in self._jobs if job.encoded is not None), default=0.0)

    def admit(self, job: Job) -> None:
        self._jobs.append(job)

    def launch(self) -> InFlightStep | None:
        """Start the next step, if anything can start."""
        self._drop_cancelled()
        filling = self._fill()
        parts = filling.batch.parts
        if not parts:
            if not self._out:
                self._refuse_stuck()
            return None
        batch = filling.batch
        shape = self._ladder.rung(batch.tokens, batch.readouts, batch.entries)
        pages = [page for part in parts for page in (part.sequence.pages or [])[: -(-part.visible // shape.page)]]
        self._pool.hold(pages)
        before, began = self._runner.compilations, time.perf_counter()
        launched, contexts = began, self._mark_launched(parts, began)
        try:
            packed = pack(parts, shape)
            whole = packed.num_readouts > 0 and any(part.job.whole_vocabulary for part in parts)
            output = self._runner.run(shape, packed, filling.copies, whole)
            for array in (*output.logits, output.vocabulary):
                if array is not None and self._copies_early:
                    array.copy_to_host_async()
        except Exception as error:
            self._pool.let_go(pages)
            self._fail(parts, contexts, error)
            self._undo_starts(filling)
            return None
        self._out += 1
        self._launched += 1
        compilations = self._runner.compilations - before
        if compilations:
            began = time.perf_counter()  # what compiling took is not the device's
        return InFlightStep(
            self._launched, shape, parts, packed, output, pages, contexts, launched, began, compilations
        )

    def until_nearly_done(self, step: InFlightStep) -> float:
        """Seconds from now, by the least that such a step has taken; not above 0 where none was seen."""
        took = self._took.get(_size(step), 0.0)
        began = max(step.at, self._last_ready)  # behind another, it began when that was done
        return began + took - max((1 - NEARLY) * took, LAUNCH_SECONDS) - time.perf_counter()

    def collect(self, step: InFlightStep) -> None:
        """Wait for a step and hand its results to the jobs."""
        self._out -= 1
        try:
            logits = np.concatenate([np.asarray(array) for array in step.output.logits])
            vocabulary = None if step.output.vocabulary is None else np.asarray(step.output.vocabulary)
        except Exception as error:
            self._pool.let_go(step.pages)
            for part in step.parts:
                part.job.parts_out -= 1
            self._fail(step.parts, step.contexts, error, launched=True)
            return
        now = time.perf_counter()
        seconds = now - max(step.at, self._last_ready)
        if step.at >= self._last_ready:  # the device had nothing else to do
            size = _size(step)
            self._took[size] = min(seconds, self._took.get(size, seconds))
        self._last_ready = now
        self._pool.let_go(step.pages)
        self._count(step, seconds)
        self._trace(step, now, seconds)
        at = 0
        for part, reads in zip(step.parts, step.packed.reads, strict=True):
            part.job.parts_out -= 1
            count = len(reads.at)
            if not part.job.failed:
                own = None if vocabulary is None else vocabulary[:, reads.at]
                part.job.store(reads.pairs, logits[at : at + count], own)
            at += count

    def finished(self) -> list[Job]:
        """Jobs with nothing left, taken off the list; those that still have an answer to get."""
        done = [job for job in self._jobs if job.done]
        if done:
            self._jobs = [job for job in self._jobs if not job.done]
            for job in done:
                self._free(job)
        return [job for job in done if not job.future.done()]

    def fail_all(self, error: Exception) -> None:
        """Nothing can run any more: everyone waiting gets the error."""
        for job in self._jobs:
            settle(job.future, error)
        self._jobs = []

    def _drop_cancelled(self) -> None:
        for job in self._jobs:
            if not job.failed and job.future.cancelled():
                self._abandon(job)

    def _abandon(self, job: Job) -> None:
        """Nothing more of it is launched; its pages come back when the steps in flight are done."""
        job.failed = True
        job.tokens_left = 0
        self._free(job)

    def _free(self, job: Job) -> None:
        if self._computing.get(job.ids) is job:
            del self._computing[job.ids]
        for sequence in job.sequences:
            self._let_go(sequence)
        if job.handle is not None:
            self._pool.let_go(job.handle.pages)
            job.handle = None

    def _let_go(self, sequence: Sequence) -> None:
        if sequence.held:
            assert sequence.pages is not None
            self._pool.let_go(sequence.pages)
            sequence.held = False

    def _fill(self) -> _Filling:
        self._number += 1
        filling = _Filling(Batch(self._ladder.largest, self._number))
        for job in self._shares.in_order([job for job in self._jobs if not job.launched]):
            self._take(filling, job)
            if filling.batch.full:
                break
        return filling

    def _take(self, filling: _Filling, job: Job) -> None:
        """As many of a job's sequences as fit, in order."""
        if job.plan.alone and filling.batch.parts:
            return
        for sequence in job.sequences[job.current :]:
            if sequence.exhausted:
                continue
            if sequence.pages is None and not self._start(filling, job, sequence):
                return
            if sequence.exhausted:  # all of it was kept, and it has no items
                self._advance(job)
                continue
            if not filling.batch.add(job, sequence):
                return
            part = filling.batch.parts[-1]
            if part.stop < sequence.plan.length or part.last < sequence.plan.last or filling.batch.full:
                return

    def _start(self, filling: _Filling, job: Job, sequence: Sequence) -> bool:
        """Pages for all of a sequence, those of its beginning shared where it is kept; False where it must wait."""
        plan = sequence.plan
        shared: CachedContext | None = None
        if plan.base:
            base = job.sequences[0]
            if base.pages is None or base.done < plan.base:
                return False  # its last page is copied before this step runs
            shared = CachedContext(job.ids[: plan.base], tuple(base.pages[: self._pages(plan.base)]))
            self._pool.hold(shared.pages)
        elif plan.keep:
            if self._computing.get(job.ids, job) is not job:
                return False
            shared = self._kept(job)
        if not self._allocate(filling, sequence, shared):
            return False
        if plan.keep:
            cached = sequence.done
            job.tokens_left -= cached
            self.totals.hit_tokens += cached - job.stats.cached_tokens
            job.stats.cached_tokens = cached  # once, however often it is started
            if sequence.done < plan.length:
                self._computing[job.ids] = job
            else:
                self._complete(job, sequence)
        return True

    def _kept(self, job: Job) -> CachedContext | None:
        """What is kept of a job's context, its pages held."""
        if job.handle is not None:
            handle, job.handle = job.handle, None
            if job.began > self._pool_since and handle.ids == job.ids[: len(handle.ids)]:
                return handle
            self._pool.let_go(handle.pages)
        whole = self._contexts.hold(job.ids)
        if whole is not None:
            return whole
        prefix = self._contexts.hold_prefix(job.ids)
        return None if prefix is None else prefix[0]

    def _allocate(self, filling: _Filling, sequence: Sequence, shared: CachedContext | None) -> bool:
        """The shared beginning's whole pages and fresh ones; its last page, where it is not whole, is copied."""
        plan, page = sequence.plan, self._ladder.largest.page
        begun = 0 if shared is None else len(shared.ids)
        if shared is not None and begun == plan.length:
            sequence.pages, sequence.done, sequence.held = list(shared.pages), begun, True
            return True
        whole = begun // page
        needed = self._pages(plan.length) - whole
        fresh = self._pool.allocate(needed)
        if fresh is None and self._contexts.evict_for(needed):
            fresh = self._pool.allocate(needed)
        if fresh is None:
            if shared is not None:
                self._pool.let_go(shared.pages)
            return False
        kept = [] if shared is None else list(shared.pages)
        if begun % page:
            # The copy is queued before anything that could write the page anew, so it need not be held for it.
            filling.copies.append((kept[whole], fresh[0]))
            self._pool.let_go(kept[whole:])
        sequence.pages, sequence.done, sequence.held = [*kept[:whole], *fresh], begun, True
        filling.started.append(sequence)
        return True

    def _undo_starts(self, filling: _Filling) -> None:
        """Of sequences whose pages were to be copied with a step that did not run."""
        for sequence in filling.started:
            if sequence.held:
                self._let_go(sequence)
                sequence.pages, sequence.done = None, 0

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self._ladder.largest.page)

    def _mark_launched(self, parts: Several[Part], now: float) -> list[CachedContext]:
        """The contexts that this step completes, which the cache has from now on."""
        contexts: list[CachedContext] = []
        for part in parts:
            job, sequence = part.job, part.sequence
            job.parts_out += 1
            job.started = now if job.started is None else job.started
            self._shares.served(job.share.tenant, part.num_tokens)
            job.tokens_left = max(0, job.tokens_left - part.num_tokens)
            if part.stop > part.start:
                sequence.done, sequence.computed_in = part.stop, self._number
                if sequence.plan.keep and part.stop == sequence.plan.length:
                    contexts.append(self._complete(job, sequence))
            sequence.next_family = part.last
            self._advance(job)
        return contexts

    def _advance(self, job: Job) -> None:
        """Past the sequences with nothing left to launch."""
        while job.current < len(job.sequences) and job.sequences[job.current].exhausted:
            if job.current:  # the first is the beginning of others
                self._let_go(job.sequences[job.current])
            job.current += 1

    def _complete(self, job: Job, sequence: Sequence) -> CachedContext:
        assert sequence.pages is not None
        context = CachedContext(job.ids, tuple(sequence.pages))
        self._contexts.put(context)
        if self._computing.get(job.ids) is job:
            del self._computing[job.ids]
        return context

    def _count(self, step: InFlightStep, seconds: float) -> None:
        self.totals.steps += 1
        self.totals.rows += len(step.parts)
        self.totals.tokens += step.packed.num_tokens
        self.totals.device_seconds += seconds
        self._shares.took(step.packed.num_tokens, seconds)
        for job in {id(part.job): part.job for part in step.parts}.values():
            job.stats.device_seconds += seconds
            job.stats.compilations += step.compilations
        # Padding is shared by those whose step it is.
        count = step.packed.num_tokens
        padded = self._computed_tokens(step.shape, count) / max(1, count)
        for part in step.parts:
            length, items = part.sequence.plan.length, part.family_tokens + part.again
            families = max(1, part.last - part.first)
            needed = self._cost.flops(part.start, part.stop - part.start, 0, 0)
            needed += self._cost.flops(length, 0, items, items / families)
            for sums in (part.job.stats, self.totals):
                sums.flops_needed += needed
                sums.flops_done += needed * padded
            part.job.stats.computed_tokens += part.num_tokens

    def _trace(self, step: InFlightStep, collected: float, seconds: float) -> None:
        """Of the requests that asked for it."""
        traced = {id(part.job): part.job for part in step.parts if part.job.trace is not None}
        if not traced:
            return
        computed = self._computed_tokens(step.shape, step.packed.num_tokens)
        done = CollectedStep(
            step.number, step.shape, step.parts, step.packed, computed, step.compilations,
            step.launched, collected, seconds,
        )  # fmt: skip
        for job in traced.values():
            assert job.trace is not None
            record(done, job, job.trace)

    def _refuse_stuck(self) -> None:
        """Nothing runs, and nothing can start: pages are what is missing, and nobody will give any back."""
        waiting = [job for job in self._jobs if not job.launched]
        if not waiting:
            return
        job = self._shares.in_order(waiting)[0]
        error = DoesNotFit(
            f"a request of {len(job.ids):,} context tokens found no room among {self._pool.pages - 1:,} pages: pinned "
            "contexts and other requests hold them; release some, or give a larger cache_bytes",
            "query",
        )
        settle(job.future, error)
        self._abandon(job)

    def _fail(
        self, parts: Several[Part], contexts: Several[CachedContext], error: Exception, launched: bool = False
    ) -> None:
        """Fail the requests of a step. Where it took the pool with it, the others begin again on a new one."""
        if out_of_memory(error):
            error = DoesNotFit(f"the device ran out of memory for a step of {len(parts)} parts; {str(error)[:200]}")
        error = self._runner.explained(error)
        for context in contexts:
            self._contexts.drop(context)
        for part in parts:
            if not launched:
                part.job.parts_out -= 1
            settle(part.job.future, error)
            if not part.job.failed:
                self._abandon(part.job)
        if self._runner.pool_lost():
            self._begin_again()

    def _begin_again(self) -> None:
        self._contexts.clear()
        self._runner.new_pool()
        self._pool_since = time.perf_counter()
        for job in self._jobs:
            if job.launched:
                continue
            for sequence in job.sequences:
                self._let_go(sequence)
                if not (sequence.pages is not None and sequence.exhausted):
                    sequence.pages, sequence.done = None, 0
            if job.sequences[0].pages is not None:  # exhausted, but the beginning of others
                job.sequences[0].pages, job.sequences[0].done, job.current = None, 0, 0
        self._computing.clear()


def _size(step: InFlightStep) -> tuple[int, int]:
    return step.shape.tokens, SIZES * step.packed.num_tokens // step.shape.tokens


def out_of_memory(error: BaseException) -> bool:
    """Whatever ran out: XLA's allocator, the compiler, or Python."""
    text = str(error).lower()
    words = ("resource_exhausted", "out of memory", "bad_alloc", "cannot allocate memory", "failed to allocate")
    return isinstance(error, MemoryError) or any(word in text for word in words)
