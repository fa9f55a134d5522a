"""How long steps take, and when the device will be done with one: the next is launched shortly before that.

Nobody sees when the device begins a step behind another, or is done with one while the engine's thread has other work.
Its time is known where both were seen; what was not seen is taken to be as expected.
"""

import time
from collections import deque

from onepass.engine.scheduling.step_stats import InFlightStep

# The part of a step's time after which the next one is looked for, so that it can be launched before the end; where
# launches take longer than the rest of the step, by so much more than the last ones took, but for the slowest of them.
NEARLY = 0.7
LAUNCH_SECONDS = 0.003
SPARE = 1.25
LAUNCHES = 8
NEW = 0.25  # what an exact time counts beside what was expected
SOON = 0.9  # of a step's time: so late nobody waits for anything but its end


class StepTimes:
    def __init__(self) -> None:
        self.seconds: dict[tuple[int, int], float] = {}  # by a step's size
        self.launches: deque[float] = deque(maxlen=LAUNCHES)
        self.free_at = 0.0  # when the device was done with the last step that was collected, as far as is known
        self._saw_end = True  # whether somebody saw it
        self._last_collected = 0.0
        self._ready: tuple[int, float] | None = None  # a step that was done while others were waited for, and when

    def expected(self, step: InFlightStep) -> float:
        """Seconds; 0 where no such step was seen."""
        return self.seconds.get(step.size, 0.0)

    def until_nearly_done(self, step: InFlightStep) -> float:
        """Seconds from now, until the next step should be launched; not above 0 where nothing is known."""
        took = self.expected(step)
        launch = max(sorted(self.launches)[:-1], default=0.0)
        ahead = max((1 - NEARLY) * took, LAUNCH_SECONDS, SPARE * launch)
        return self._began(step) + took - ahead - time.perf_counter()

    def until_soon_done(self, step: InFlightStep) -> float:
        return self._began(step) + SOON * self.expected(step) - time.perf_counter()

    def ready_early(self, step: InFlightStep) -> None:
        """It was found to be done, before it was collected."""
        self._ready = step.number, time.perf_counter()

    def collected(self, step: InFlightStep, now: float, waited: bool) -> float:
        """The seconds from when a step could begin until its results were taken; `waited`: they came only now."""
        seconds = now - max(step.at, self._last_collected)
        self._last_collected = now
        if self._ready is not None and self._ready[0] == step.number:
            now, waited = self._ready[1], True
        began, saw_begin = self._began(step), step.at >= self.free_at or self._saw_end
        self._learn(step, now - began, saw_begin, waited)
        self.free_at = now if waited else min(now, began + self.expected(step))
        self._saw_end = waited
        return seconds

    def _learn(self, step: InFlightStep, took: float, saw_begin: bool, saw_end: bool) -> None:
        """Of a step that was done before anybody looked: it took no longer than this. Where not even its beginning was
        seen, steps are launched too late: less is expected until somebody has to wait for one again."""
        known = self.seconds.get(step.size, took)
        if saw_begin and saw_end:
            known += NEW * (took - known)
        elif saw_begin:
            known = min(known, took)
        elif not saw_end:
            known *= SOON
        self.seconds[step.size] = known

    def _began(self, step: InFlightStep) -> float:
        return max(step.at, self.free_at)  # behind another, it began when that was done
