"""What the device does next: steps filled from the queue, launched, and collected.

A step is a budget of tokens. Parts of contexts, items and branches of any requests share it, the most urgent request's
first (`fairness`). The device runs steps in the order of their launch, so a sequence counts as computed once its last
step is launched: items may follow in the next one. A step that fails fails its own requests only.

Every page that a step reads or writes is held from its launch until it is collected. Which pages a sequence gets is
`contexts.allocator`; which of them go into a step is `filling`; what steps cost is `step_stats`; how long they take is
`step_times`.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Several

import numpy as np

from onepass.attention.base import StepShape
from onepass.engine.contexts.allocator import PageAllocator
from onepass.engine.contexts.cache import CachedContext, ContextCache
from onepass.engine.contexts.pages import PagePool
from onepass.engine.cost_model import CostModel
from onepass.engine.job import Job, settle
from onepass.engine.packing import Packed, Part, pack
from onepass.engine.programs.ladder import Ladder
from onepass.engine.runner import Runner, StepOutput
from onepass.engine.scheduling.batching import Batch
from onepass.engine.scheduling.fairness import FairQueue
from onepass.engine.scheduling.filling import Filling, fill
from onepass.engine.scheduling.step_stats import EngineStats, InFlightStep, StepStats
from onepass.engine.scheduling.step_times import StepTimes
from onepass.errors import DoesNotFit

# Tokens of a step that is never made smaller so that the next has as many.
LEAST_EVEN_TOKENS = 4096


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
        """`copies_early`: results are copied to the host without being asked for. `computed_tokens`: of `StepStats`."""
        self.max_tokens = ladder.largest.tokens
        self._ladder = ladder
        self._contexts = contexts
        self._pool = pool
        self._runner = runner
        self._copies_early = copies_early
        self._jobs: list[Job] = []
        self._shares = FairQueue(self.max_tokens)
        self._number = 0
        self._launched = 0
        self._out = 0  # steps on the device
        self._out_tokens = 0
        self.times = StepTimes()
        self.stats = StepStats(cost, computed_tokens)
        self._allocator = PageAllocator(contexts, pool, ladder.largest.page, self.stats)

    @property
    def totals(self) -> EngineStats:
        return self.stats.totals

    @property
    def waiting(self) -> bool:
        return any(not job.launched for job in self._jobs)

    @property
    def waiting_tokens(self) -> int:
        return sum(job.tokens_left for job in self._jobs)

    @property
    def oldest_arrival(self) -> float:
        """Arrival time of the oldest waiting request. Contexts that are only to be kept do not count."""
        waiting = (job.arrived for job in self._jobs if job.encoded is not None and not job.launched)
        return min(waiting, default=0.0)

    def admit(self, job: Job) -> None:
        self._jobs.append(job)

    def launch(self) -> InFlightStep | None:
        """Start the next step, if anything can start."""
        asked = time.perf_counter()
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
        before, launched = self._runner.compilations, time.perf_counter()
        try:
            packed = pack(parts, shape)
            at = time.perf_counter()
            output = self._run(shape, packed, parts, filling.starts.copies)
        except Exception as error:
            self._pool.let_go(pages)
            self._fail(parts, self._mark_launched(parts, launched), error)
            self._allocator.undo(filling.starts)
            return None
        contexts = self._mark_launched(parts, launched)  # while the device works
        self._out += 1
        self._out_tokens += packed.num_tokens
        self._launched += 1
        compilations = self._runner.compilations - before
        if compilations:
            at = time.perf_counter()  # what compiling took is not the device's
        else:
            self.times.launches.append(time.perf_counter() - asked)
        needed = self.stats.needed(parts)  # now, while the device works: it need not wait for this at the end
        return InFlightStep(
            self._launched, shape, parts, packed, output, pages, contexts, needed, launched, at, compilations
        )

    def _run(self, shape: StepShape, packed: Packed, parts: list[Part], copies: list[tuple[int, int]]) -> StepOutput:
        whole = packed.num_readouts > 0 and any(part.job.whole_vocabulary for part in parts)
        output = self._runner.run(shape, packed, copies, whole)
        for array in (*output.logits, output.vocabulary):
            if array is not None and self._copies_early:
                array.copy_to_host_async()
        return output

    def collect(self, step: InFlightStep) -> None:
        """Wait for a step and hand its results to the jobs."""
        self._out -= 1
        self._out_tokens -= step.packed.num_tokens
        try:
            waited = not step.ready
            several = [np.asarray(array) for array in step.output.logits]
            vocabulary = None if step.output.vocabulary is None else np.asarray(step.output.vocabulary)
        except Exception as error:
            self._pool.let_go(step.pages)
            self._fail(step.parts, step.contexts, error)
            return
        now = time.perf_counter()
        logits = several[0] if len(several) == 1 else np.concatenate(several)
        seconds = self.times.collected(step, now, waited)
        self._pool.let_go(step.pages)
        self._shares.took(step.packed.num_tokens, seconds)
        self.stats.add(step, seconds)
        self.stats.trace(step, now, seconds)
        self._hand_out(step, logits, vocabulary)

    def _hand_out(self, step: InFlightStep, logits: np.ndarray, vocabulary: np.ndarray | None) -> None:
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
                self._allocator.free(job)
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
        self._allocator.free(job)

    def _fill(self) -> Filling:
        self._number += 1
        jobs = self._shares.in_order([job for job in self._jobs if not job.launched])
        return fill(Batch(self._ladder.largest, self._number), jobs, self._allocator, self._enough())

    def _enough(self) -> int:
        """Behind another step, half of what is there: callers who send again when they are answered come in two groups,
        and while the device has the one's step, the other's answers and next requests are the host's work."""
        if not self._out:
            return self.max_tokens
        return max(LEAST_EVEN_TOKENS, (self.waiting_tokens + self._out_tokens + 1) // 2)

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
                    contexts.append(self._allocator.complete(job, sequence))
            sequence.next_family = part.last
            self._allocator.advance(job)
        return contexts

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

    def _fail(self, parts: Several[Part], contexts: Several[CachedContext], error: Exception) -> None:
        """Fail the requests of a step. Where it took the pool with it, the others begin again on a new one."""
        if out_of_memory(error):
            error = DoesNotFit(f"the device ran out of memory for a step of {len(parts)} parts; {str(error)[:200]}")
        error = self._runner.explained(error)
        for context in contexts:
            self._contexts.drop(context)
        for part in parts:
            part.job.parts_out -= 1
            settle(part.job.future, error)
            if not part.job.failed:
                self._abandon(part.job)
        if self._runner.pool_lost():
            self._allocator.start_again(self._jobs)
            self._runner.new_pool()


def out_of_memory(error: BaseException) -> bool:
    """Whatever ran out: XLA's allocator, the compiler, or Python."""
    text = str(error).lower()
    words = ("resource_exhausted", "out of memory", "bad_alloc", "cannot allocate memory", "failed to allocate")
    return isinstance(error, MemoryError) or any(word in text for word in words)
