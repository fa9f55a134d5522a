"""What the device does next: rows of waiting jobs gathered into steps, launched, and collected.

A step is bounded in tokens. Contexts that rows need are computed first, once however many jobs want them. A step that
fails fails its own jobs only.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import jax
import numpy as np

from onepass.engine.config import EngineConfig
from onepass.engine.contexts import ContextCache, KeptContext
from onepass.engine.gather import Row, gather, program_of
from onepass.engine.ids import Ids
from onepass.engine.job import Job, PrefillJob, settle
from onepass.engine.lowering import Program
from onepass.engine.pack import RowPlan, pack
from onepass.engine.plan import Planner
from onepass.engine.runner import Computed, Runner
from onepass.engine.shares import Shares
from onepass.engine.work import Work
from onepass.errors import DoesNotFit


@dataclass(frozen=True)
class Launched:
    program: Program
    rows: list[Row]
    computed: Computed
    at: float
    compilations: int


# The part of a step's time after which the next one is looked for, so that it can be launched before the end; in steps
# that are short, so many seconds before it.
NEARLY = 0.7
LAUNCH_SECONDS = 0.003


@dataclass
class Totals:
    """Sums over every step since the start, for those who watch."""

    steps: int = 0
    rows: int = 0
    device_seconds: float = 0.0
    flops_done: float = 0.0
    flops_needed: float = 0.0
    hit_tokens: int = 0


class Stepper:
    def __init__(
        self, config: EngineConfig, work: Work, contexts: ContextCache, runner: Runner, planner: Planner
    ) -> None:
        assert config.max_batch_tokens is not None
        self.most_tokens = config.max_batch_tokens
        self._work = work
        self._contexts = contexts
        self._runner = runner
        self._planner = planner
        # On the CPU there is nothing to copy, and JAX would have its own thread take Python's lock when the step is
        # done: a process that has ended by then is aborted ("terminate called without an active exception").
        self._copies_early = planner.device.platform != "cpu" and not runner.tells_host
        self._jobs: list[Job] = []
        self._prefills: dict[Ids, PrefillJob] = {}
        self._out: set[int] = set()  # ids of prefills whose step is on the device
        self._shares = Shares(config.max_batch_tokens)
        self._last_ready = 0.0
        self._took: dict[Program, float] = {}  # the least seconds of a step and its launch
        self.totals = Totals()

    @property
    def waiting(self) -> bool:
        return bool(self._jobs or self._prefills)

    @property
    def waiting_tokens(self) -> int:
        return sum(job.tokens_left for job in self._jobs) + sum(job.tokens_left for job in self._prefills.values())

    @property
    def oldest_arrival(self) -> float:
        """When the one that has waited longest came (`time.perf_counter`); of requests, for nobody hurries contexts."""
        return min((job.arrived for job in self._jobs), default=0.0)

    def admit(self, job: Job | PrefillJob) -> None:
        if isinstance(job, PrefillJob):
            self._start_prefill(job).wanted_by.append(job.future)
            return
        self._jobs.append(job)
        if job.plan.prefill and job.context is None:
            job.context = self._contexts.find(job.encoded.context)
        if job.plan.prefill and job.context is not None:
            job.spent.cached_tokens = len(job.encoded.context)
            self.totals.hit_tokens += len(job.encoded.context)
        if job.needs_context:
            job.prefill = self._start_prefill(PrefillJob(job.encoded.context, share=job.share))
            job.prefill.wanted_by.append(job.future)

    def _start_prefill(self, job: PrefillJob) -> PrefillJob:
        """Jobs that want the same context wait for one computation of it."""
        kept = self._contexts.find(job.ids)
        if kept is not None:
            settle(job.future, kept)
            return job
        under_way = self._prefills.setdefault(job.ids, job)
        if under_way is not job:
            under_way.future.add_done_callback(lambda done: _follow(done, job))
        return under_way

    def launch(self) -> Launched | None:
        """Start the next step, if anything can start."""
        self._drop_abandoned()
        in_order = self._in_order()
        first = next(in_order, None)
        if first is None:
            return None
        rows = gather(first, in_order, self.most_tokens)
        while len(rows) > 1 and not self._fits(program_of(rows)):
            rows = rows[: len(rows) // 2]
        wanted = program_of(rows)
        program = self._runner.choose(wanted)
        if not self._fits(program):
            program = wanted
        rows = rows[: program.shape.rows]
        for row in rows:
            self._mark_started(row)
        before = self._runner.compilations
        try:
            self._planner.check_shape(program.shape, program.attention == "dense", "this step")
            self._runner.compile(program)
            began = time.perf_counter()
            batch = pack([row.plan for row in rows], program.shape)
            prefixes = [(row.context, row.plan.prefix) for row in rows]
            whole = any(isinstance(row.job, Job) and row.job.encoded.whole_vocabulary for row in rows)
            computed = self._runner.run(program, batch, prefixes, whole, wanted.keep)
            for told in (computed.logits, computed.logsumexp):
                if told is not None and self._copies_early:
                    told.copy_to_host_async()
        except Exception as error:
            self._fail(rows, error)
            return None
        return Launched(program, rows, computed, began, self._runner.compilations - before)

    def _fits(self, program: Program) -> bool:
        return self._planner.fits(program.shape, program.attention == "dense")

    def until_nearly_done(self, launched: Launched) -> float:
        """Seconds from now, by the least that such a step has taken; not above 0 where none was seen."""
        took = self._took.get(launched.program, 0.0)
        began = max(launched.at, self._last_ready)  # behind another, it began when that was done
        return began + took - max((1 - NEARLY) * took, LAUNCH_SECONDS) - time.perf_counter()

    def collect(self, launched: Launched) -> None:
        """Wait for a step and hand its results to the jobs."""
        computed = launched.computed
        try:
            if computed.logits is None:
                jax.block_until_ready(computed.kept)
            logits, totals = (None if a is None else np.asarray(a) for a in (computed.logits, computed.logsumexp))
        except Exception as error:
            self._fail(launched.rows, error)
            return
        now = time.perf_counter()
        seconds = now - max(launched.at, self._last_ready)
        if launched.at >= self._last_ready:  # the device had nothing else to do
            self._took[launched.program] = min(seconds, self._took.get(launched.program, seconds))
        self._last_ready = now
        self.totals.steps += 1
        self.totals.rows += len(launched.rows)
        self.totals.device_seconds += seconds
        self._shares.took(sum(row.plan.num_items + len(row.plan.context) for row in launched.rows), seconds)
        for job in {id(row.job): row.job for row in launched.rows}.values():
            job.spent.device_seconds += seconds
            job.spent.compilations += launched.compilations
        for r, row in enumerate(launched.rows):
            self._account(row, launched)
            if launched.program.keep:
                self._keep(row, *computed.kept[r])
            if isinstance(row.job, Job):
                assert logits is not None
                row.job.rows_out -= 1
                row.job.store(row.number, logits[r], None if totals is None else totals[r])

    def finished(self) -> list[Job]:
        """Jobs with nothing left, taken off the list."""
        done = [job for job in self._jobs if job.done]
        if done:
            self._jobs = [job for job in self._jobs if not job.done]
        return [job for job in done if not job.future.done()]

    def fail_all(self, error: Exception) -> None:
        """Nothing can run any more: everyone waiting is told."""
        waiting: list[Job | PrefillJob] = [*self._jobs, *self._prefills.values()]
        for job in waiting:
            settle(job.future, error)
        self._jobs, self._prefills = [], {}

    def _drop_abandoned(self) -> None:
        for job in self._jobs:
            if job.future.cancelled():
                job.next_row = len(job.plan.rows)
        for prefill in [p for p in self._prefills.values() if p.abandoned and id(p) not in self._out]:
            del self._prefills[prefill.ids]

    def _in_order(self) -> Iterator[Row]:
        """Rows that could start now, the most urgent job's first."""
        jobs: list[Job | PrefillJob] = [j for j in self._prefills.values() if id(j) not in self._out]
        jobs += [j for j in self._jobs if j.next_row < len(j.plan.rows) and self._ready(j)]
        for job in self._shares.in_order(jobs):
            yield from self._rows_of(job)

    def _ready(self, job: Job) -> bool:
        if not job.needs_context:
            return True
        assert job.prefill is not None
        if not job.prefill.future.done():
            return False
        if (error := job.prefill.future.exception()) is not None:
            settle(job.future, error)
            job.next_row = len(job.plan.rows)
            return False
        job.context = job.prefill.future.result()
        spent = job.prefill.spent
        job.spent.flops_done += spent.flops_done
        job.spent.flops_needed += spent.flops_needed
        job.spent.device_seconds += spent.device_seconds
        job.spent.compilations += spent.compilations
        job.spent.computed_tokens += spent.computed_tokens
        job.spent.cached_tokens += spent.cached_tokens
        return True

    def _rows_of(self, job: Job | PrefillJob) -> Iterator[Row]:
        if isinstance(job, PrefillJob):
            yield self._prefill_row(job)
            return
        for number in range(job.next_row, len(job.plan.rows)):
            plan = job.plan.rows[number]
            yield Row(job, number, plan, job.context if plan.prefix else None)

    def _prefill_row(self, job: PrefillJob) -> Row:
        """The next part of a context: after what this job has computed, or after what the cache shares with it."""
        base, shared = job.partial, 0 if job.partial is None else len(job.partial.ids)
        if base is None and (nearest := self._contexts.nearest(job.ids)) is not None:
            base, shared = nearest
        ids = np.array(job.ids[shared : shared + self.most_tokens], np.int32)
        return Row(job, 0, RowPlan(ids, shared, None), base if shared else None)

    def _mark_started(self, row: Row) -> None:
        self._shares.served(row.job.share.tenant, row.plan.num_items + len(row.plan.context))
        if isinstance(row.job, PrefillJob):
            self._out.add(id(row.job))
            if row.job.partial is None:
                row.job.spent.cached_tokens = row.plan.prefix
                self.totals.hit_tokens += row.plan.prefix
            return
        row.job.next_row += 1
        row.job.rows_out += 1
        if row.job.started is None:
            row.job.started = time.perf_counter()

    def _keep(self, row: Row, k: jax.Array, v: jax.Array, hidden: jax.Array) -> None:
        if isinstance(row.job, Job):
            self._contexts.put(KeptContext(row.job.encoded.context, k, v, hidden))
            return
        job = row.job
        self._out.discard(id(job))
        kept = KeptContext(job.ids[: row.plan.prefix + len(row.plan.context)], k, v, hidden)
        if len(kept.ids) < len(job.ids):
            job.partial = kept
            return
        self._contexts.put(kept)
        del self._prefills[job.ids]
        settle(job.future, kept)

    def _account(self, row: Row, launched: Launched) -> None:
        shape, spent = launched.program.shape, row.job.spent
        needed = row.plan.needs
        done = self._work.shape_flops(shape) / len(launched.rows)
        least = self._work.flops(needed.prefix, needed.context, needed.items, 2 * min(shape.band, shape.items))
        for sums in (spent, self.totals):
            sums.flops_done += done
            sums.flops_needed += least
        spent.computed_tokens += needed.tokens

    def _fail(self, rows: list[Row], error: Exception) -> None:
        if out_of_memory(error):
            error = DoesNotFit(f"the device ran out of memory for a step of {len(rows)} rows; {str(error)[:200]}")
        error = self._runner.explained(error)
        for row in rows:
            if isinstance(row.job, PrefillJob):
                self._out.discard(id(row.job))
                self._prefills.pop(row.job.ids, None)
            else:
                row.job.rows_out -= 1
                row.job.next_row = len(row.job.plan.rows)
            settle(row.job.future, error)


def out_of_memory(error: BaseException) -> bool:
    """Whatever ran out: XLA's allocator, the compiler, or Python."""
    told = str(error).lower()
    words = ("resource_exhausted", "out of memory", "bad_alloc", "cannot allocate memory", "failed to allocate")
    return isinstance(error, MemoryError) or any(word in told for word in words)


def _follow(done: "Future[KeptContext]", job: PrefillJob) -> None:
    settle(job.future, done.exception() or done.result())
