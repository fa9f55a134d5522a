"""The trace of a request while it runs: its steps, up to a bound, and how many more there were.

Reading a step is `step`; the nouns are `onepass.trace`.
"""

from dataclasses import dataclass, field, replace

from onepass.trace import Trace, TraceStep

MAX_STEPS = 256
MAX_SEGMENTS = 4096  # in all steps together


@dataclass
class TraceRecorder:
    """The steps of a request so far."""

    page: int = 0
    steps: list[TraceStep] = field(default_factory=list)
    omitted_steps: int = 0
    omitted_segments: int = 0
    segments_left: int = MAX_SEGMENTS

    @property
    def full(self) -> bool:
        return len(self.steps) >= MAX_STEPS

    def add(self, step: TraceStep, omitted_segments: int) -> None:
        self.steps.append(step)
        self.segments_left -= len(step.segments)
        self.omitted_segments += omitted_segments

    def finished(self, replica: int) -> Trace:
        steps = tuple(replace(step, replica=replica) for step in self.steps)
        return Trace(self.page, steps, self.omitted_steps, self.omitted_segments)
