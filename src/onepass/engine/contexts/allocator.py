"""Pages for the sequences of jobs: shared with a kept context where a sequence begins with it, else fresh ones.

A sequence gets all of its pages when it starts and holds them until its job needs them no more. Two jobs never compute
the same context at once: the second waits for the first. What is kept, and evicted to make room, is `cache`; when a
sequence starts is decided by `scheduling.scheduler`.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from onepass.engine.contexts.cache import CachedContext, ContextCache
from onepass.engine.contexts.pages import PagePool
from onepass.engine.encoding.ids import Ids
from onepass.engine.job import Job, Sequence
from onepass.engine.scheduling.step_stats import StepStats


@dataclass
class Starts:
    """The sequences that start with a step, and the pages to be copied before it."""

    sequences: list[Sequence] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)


class PageAllocator:
    def __init__(self, contexts: ContextCache, pool: PagePool, page_tokens: int, stats: StepStats) -> None:
        self._contexts = contexts
        self._pool = pool
        self._page_tokens = page_tokens
        self._stats = stats
        self._computing: dict[Ids, Job] = {}  # whose step will bring a context that others may want
        self._pool_since = 0.0  # handles from before that name pages of a pool that is gone

    def start(self, job: Job, sequence: Sequence, starts: Starts) -> bool:
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
        if not self._allocate(sequence, shared, starts):
            return False
        if plan.keep:
            job.tokens_left -= sequence.done
            self._stats.add_hit(job, sequence.done)
            if sequence.done < plan.length:
                self._computing[job.ids] = job
            else:
                self.complete(job, sequence)
        return True

    def complete(self, job: Job, sequence: Sequence) -> CachedContext:
        """The context of a sequence whose last tokens are launched, which the cache has from now on."""
        assert sequence.pages is not None
        context = CachedContext(job.ids, tuple(sequence.pages))
        self._contexts.put(context)
        if self._computing.get(job.ids) is job:
            del self._computing[job.ids]
        return context

    def advance(self, job: Job) -> None:
        """Past the sequences with nothing left to launch."""
        while job.current < len(job.sequences) and job.sequences[job.current].exhausted:
            if job.current:  # the first is the beginning of others
                self._let_go(job.sequences[job.current])
            job.current += 1

    def undo(self, starts: Starts) -> None:
        """Of sequences whose pages were to be copied with a step that did not run."""
        for sequence in starts.sequences:
            if sequence.held:
                self._let_go(sequence)
                sequence.pages, sequence.done = None, 0

    def free(self, job: Job) -> None:
        """All that is held for a job; steps in flight hold pages of their own."""
        if self._computing.get(job.ids) is job:
            del self._computing[job.ids]
        for sequence in job.sequences:
            self._let_go(sequence)
        if job.handle is not None:
            self._pool.let_go(job.handle.pages)
            job.handle = None

    def start_again(self, jobs: Iterable[Job]) -> None:
        """The pool is a new one: nothing is kept, and every sequence that is not exhausted starts anew."""
        self._contexts.clear()
        self._pool_since = time.perf_counter()
        for job in jobs:
            if job.launched:
                continue
            for sequence in job.sequences:
                self._let_go(sequence)
                if not (sequence.pages is not None and sequence.exhausted):
                    sequence.pages, sequence.done = None, 0
            if job.sequences[0].pages is not None:  # exhausted, but the beginning of others
                job.sequences[0].pages, job.sequences[0].done, job.current = None, 0, 0
        self._computing.clear()

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

    def _allocate(self, sequence: Sequence, shared: CachedContext | None, starts: Starts) -> bool:
        """The shared beginning's whole pages and fresh ones; its last page, where it is not whole, is copied."""
        length = sequence.plan.length
        begun = 0 if shared is None else len(shared.ids)
        if shared is not None and begun == length:
            sequence.pages, sequence.done, sequence.held = list(shared.pages), begun, True
            return True
        whole = begun // self._page_tokens
        fresh = self._fresh(self._pages(length) - whole)
        if fresh is None:
            if shared is not None:
                self._pool.let_go(shared.pages)
            return False
        kept = [] if shared is None else list(shared.pages)
        if begun % self._page_tokens:
            # The copy is queued before anything that could write the page anew, so it need not be held for it.
            starts.copies.append((kept[whole], fresh[0]))
            self._pool.let_go(kept[whole:])
        sequence.pages, sequence.done, sequence.held = [*kept[:whole], *fresh], begun, True
        starts.sequences.append(sequence)
        return True

    def _fresh(self, count: int) -> list[int] | None:
        """Kept contexts make room; None where that does not suffice."""
        fresh = self._pool.allocate(count)
        if fresh is None and self._contexts.evict_for(count):
            fresh = self._pool.allocate(count)
        return fresh

    def _let_go(self, sequence: Sequence) -> None:
        if sequence.held:
            assert sequence.pages is not None
            self._pool.let_go(sequence.pages)
            sequence.held = False

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self._page_tokens)
