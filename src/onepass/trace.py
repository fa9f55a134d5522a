"""What ran for one request, step by step: the nouns of `return_trace`. No JAX here.

A trace holds numbers of its own request and, of the steps that it shared, only their sizes: no text, no token id, and
nothing that names another request. It is bounded; what is left out is counted. What a step did is read off by
`engine.trace`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True)
class TraceSegment:
    """Tokens of one segment in a step. `segment`, `parent` and `context` are numbered within the request's part of the
    step and are what the visibility rule compares (`attention.mask`): a token sees keys of its segment, its parent and
    its context at positions up to its own. `position` is that of the first token; the others follow."""

    first: int  # the request's own tokens in this step before it
    tokens: int
    segment: int
    parent: int
    context: int
    position: int
    item: int | None  # index of the item; None: tokens of the context


@dataclass(frozen=True)
class TraceStep:
    """A step that the request took part in. Times are milliseconds after the request reached the engine; `device_ms` is
    the step's own time, which starts when the step before it is done."""

    number: int  # of the engine's steps since it started
    rung: int  # tokens that the step's program is compiled for
    tokens: int  # of this request
    all_tokens: int  # of all requests in the step
    computed_tokens: int  # with the padding that the kernels compute
    cached_tokens: int  # of this request's contexts, in pages before the step
    pages_read: int  # entries of the page table that are this request's
    readouts: int  # of this request
    launched_ms: float
    collected_ms: float
    device_ms: float
    compilations: int
    segments: tuple[TraceSegment, ...] = ()
    replica: int = 0


@dataclass(frozen=True)
class Trace:
    """`omitted_steps` and `omitted_segments` count what is beyond the bounds of `engine.trace.recorder`."""

    page: int  # tokens of a page
    steps: tuple[TraceStep, ...]
    omitted_steps: int = 0
    omitted_segments: int = 0

    def to_dict(self) -> dict[str, Any]:
        steps = [{**vars(step), "segments": [dict(vars(one)) for one in step.segments]} for step in self.steps]
        return {**vars(self), "steps": steps}

    def shifted(self, items: int) -> "Trace":
        """Of a part of a request that begins with item number `items`."""

        def of(segment: TraceSegment) -> TraceSegment:
            return segment if segment.item is None else replace(segment, item=segment.item + items)

        return replace(self, steps=tuple(replace(step, segments=tuple(map(of, step.segments))) for step in self.steps))

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "Trace":
        """What `to_dict` made, by way of JSON. Members that a newer server adds are left out."""
        steps = tuple(
            TraceStep(**_known(TraceStep, step) | {"segments": tuple(map(_segment, step["segments"]))})
            for step in given["steps"]
        )
        return cls(**_known(cls, given) | {"steps": steps})


def joined(traces: list[Trace]) -> Trace | None:
    """Of a request that was divided between replicas: all steps in the order of their launch. None of none."""
    if not traces:
        return None
    steps = sorted((step for trace in traces for step in trace.steps), key=lambda step: step.launched_ms)
    return Trace(
        traces[0].page,
        tuple(steps),
        sum(trace.omitted_steps for trace in traces),
        sum(trace.omitted_segments for trace in traces),
    )


def _segment(given: Mapping[str, Any]) -> TraceSegment:
    return TraceSegment(**_known(TraceSegment, given))


def _known(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in given.items() if name in names}
