"""Jobs into a batch: as many of their sequences as fit, the most urgent job's first, each started where it begins.

The order is `fairness`; how much of a sequence fits is `batching`; its pages come from `contexts.allocator`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from onepass.engine.contexts.allocator import PageAllocator, Starts
from onepass.engine.job import Job
from onepass.engine.scheduling.batching import Batch


@dataclass
class Filling:
    """A batch, and what starting its sequences took."""

    batch: Batch
    starts: Starts = field(default_factory=Starts)


def fill(batch: Batch, jobs: Iterable[Job], allocator: PageAllocator, enough: int) -> Filling:
    """With so many tokens no further job is begun."""
    filling = Filling(batch)
    for job in jobs:
        _take(filling, job, allocator)
        if batch.full or batch.tokens >= enough:
            break
    return filling


def _take(filling: Filling, job: Job, allocator: PageAllocator) -> None:
    """As many of a job's sequences as fit, in order."""
    batch = filling.batch
    if job.plan.alone and batch.parts:
        return
    for sequence in job.sequences[job.current :]:
        if sequence.exhausted:
            continue
        if sequence.pages is None and not allocator.start(job, sequence, filling.starts):
            return
        if sequence.exhausted:  # all of it was kept, and it has no items
            allocator.advance(job)
            continue
        if not batch.add(job, sequence):
            return
        part = batch.parts[-1]
        if part.stop < sequence.plan.length or part.last < sequence.plan.last or batch.full:
            return
