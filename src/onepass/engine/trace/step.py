"""What a step did for one request, read from the arrays that the device was given: the steps of `return_trace`.

Only requests with `return_trace` have a `recorder`; for the others nothing is read. The nouns are `onepass.trace`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onepass.attention.base import StepShape
from onepass.attention.mask import Places
from onepass.engine.encoding.segments import item_starts
from onepass.engine.job import Job
from onepass.engine.packing import Packed, Part
from onepass.engine.programs.step_arrays import views
from onepass.engine.trace.recorder import TraceRecorder
from onepass.trace import TraceSegment, TraceStep


@dataclass(frozen=True)
class CollectedStep:
    """A step as all of its requests share it. `launched` and `collected` are times of `time.perf_counter`."""

    number: int
    shape: StepShape
    parts: Sequence[Part]
    packed: Packed
    computed_tokens: int
    compilations: int
    launched: float
    collected: float
    device_seconds: float


@dataclass(frozen=True)
class _OwnPart:
    part: Part
    begin: int  # its first token in the step
    readouts: int


def record(step: CollectedStep, job: Job, recorder: TraceRecorder) -> None:
    """Adds what `step` did for `job`."""
    recorder.page = step.shape.page
    if recorder.full:
        recorder.omitted_steps += 1
        return
    own = _own_parts(step, job)
    parts = [one.part for one in own]
    segments, omitted = _segments(step, own, recorder.segments_left)
    recorder.add(
        TraceStep(
            number=step.number,
            rung=step.shape.tokens,
            tokens=sum(part.num_tokens for part in parts),
            all_tokens=step.packed.num_tokens,
            computed_tokens=step.computed_tokens,
            cached_tokens=sum(part.start if part.stop > part.start else part.visible for part in parts),
            pages_read=sum(-(-part.visible // step.shape.page) for part in parts),
            readouts=sum(one.readouts for one in own),
            launched_ms=1e3 * (step.launched - job.arrived),
            collected_ms=1e3 * (step.collected - job.arrived),
            device_ms=1e3 * step.device_seconds,
            compilations=step.compilations,
            segments=segments,
        ),
        omitted,
    )


def _own_parts(step: CollectedStep, job: Job) -> list[_OwnPart]:
    own, begin = [], 0
    for part, reads in zip(step.parts, step.packed.reads, strict=True):
        if part.job is job:
            own.append(_OwnPart(part, begin, len(np.unique(reads.at))))
        begin += part.num_tokens
    return own


def _segments(step: CollectedStep, own: Sequence[_OwnPart], most: int) -> tuple[tuple[TraceSegment, ...], int]:
    """The request's places as runs of tokens, at most so many, and how many more there are. A step numbers segments
    across requests; here they are numbered in the order in which the request's own tokens name them."""
    places = Places(*views(step.packed.numbers, step.shape)[1:5])
    numbers: dict[int, int] = {}
    out: list[TraceSegment] = []
    omitted = first = 0
    for one in own:
        at = slice(one.begin, one.begin + one.part.num_tokens)
        context, segment, parent, position = (
            np.asarray(a[at]) for a in (places.context, places.segment, places.parent, places.position)
        )
        edges = np.flatnonzero((np.diff(segment) != 0) | (np.diff(position) != 1)) + 1
        starts = np.concatenate([[0], edges]) if len(segment) else edges
        room = max(0, most - len(out))
        omitted += max(0, len(starts) - room)
        lengths = np.diff(np.append(starts, len(segment)))[:room].tolist()
        starts = starts[:room]
        columns = (a[starts].tolist() for a in (context, segment, parent, position))
        for start, tokens, item, of, own_segment, above, at_position in zip(
            starts.tolist(), lengths, _items(one.part, starts), *columns, strict=True
        ):
            named = [numbers.setdefault(number, len(numbers)) for number in (of, above, own_segment)]
            out.append(TraceSegment(first + start, tokens, named[2], named[1], named[0], at_position, item))
        first += one.part.num_tokens
    return tuple(out), omitted


def _items(part: Part, starts: np.ndarray) -> list[int | None]:
    """The item that each run of a part's tokens belongs to; None for the context's own tokens."""
    job, plan = part.job, part.sequence.plan
    own_tokens = part.stop - part.start + part.again
    among_own = int(np.searchsorted(starts, own_tokens))
    # A sequence with read-outs of its own is context and item in one.
    own = _items_of_readouts(job, np.array([plan.first_read]))[0] if len(plan.read_positions) else None
    token = int(job.family_edges[part.first]) + starts[among_own:] - own_tokens
    family = np.searchsorted(job.family_edges, token, side="right") - 1
    return [own] * among_own + _items_of_readouts(job, job.plan.segments.readout_starts[family])


def _items_of_readouts(job: Job, readouts: np.ndarray) -> list[int | None]:
    if job.encoded is None or not len(readouts):
        return [None] * len(readouts)
    segments = job.plan.segments
    target = segments.targets[segments.pair_starts[readouts]]
    row = np.searchsorted(item_starts(job.encoded), target, side="right") - 1
    items: list[int | None] = (row // max(1, len(job.encoded.branches))).tolist()
    return items
