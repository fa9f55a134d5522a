"""The engine's thread: it alone feeds the device. Jobs come from any thread and wait here until it admits them.

    admit ─► launch ─► collect ─► finish, and again

What goes into a step is `scheduler`'s; encoding, planning and results are `engine`'s.
"""

import atexit
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from onepass.engine.job import Job, settle
from onepass.engine.scheduling.launch_gate import LaunchGate
from onepass.engine.scheduling.scheduler import Scheduler
from onepass.engine.scheduling.step_stats import InFlightStep
from onepass.errors import OnepassError

ABANDON_SECONDS = 5.0
# How long others may compute while the engine's thread wants Python's lock: with Python's own 5 ms, callers that encode
# large requests keep it from feeding the device.
LOCK_SECONDS = 0.0001
SHORT_NAP = 0.0002
LONG_NAP = 0.002  # between two looks at whether a step is done already
# While callers bring more, a device with nothing to do is left so for this long at most, unless this part of a step has
# come: small steps cost more a token, and their launches keep the others from coming.
BURST_SECONDS = 0.004
BURST_PART = 0.375
BURST_NAP = 0.0005


class StepLoop:
    """`model` is its name, for results. The loop knows nothing of the engine: the last reference frees it."""

    def __init__(self, scheduler: Scheduler, callers: LaunchGate, steps_in_flight: int, model: str) -> None:
        self.replica = 0  # the engine's number among those of the same model
        self.failure: Exception | None = None  # why the thread ended before its time
        self._scheduler = scheduler
        self._callers = callers
        self._max_in_flight = steps_in_flight
        self._model = model
        self._arrived: deque[Job] = deque()
        self._in_flight: deque[InFlightStep] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def oldest_step(self) -> float | None:
        """When the step that the device is at was given to it (`time.perf_counter`); None when it has nothing to do."""
        launched = next(iter(self._in_flight), None)
        return None if launched is None else launched.at

    def add(self, jobs: Sequence[Job], at_exit: Callable[[], None]) -> None:
        """From any thread. The first call starts the loop's own; `at_exit` then runs when the process ends, until it is
        unregistered."""
        with self._wake:
            if self._closing or self.failure is not None:
                raise OnepassError(f"the scorer has failed: {self.failure}" if self.failure else "the scorer is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="onepass-engine", daemon=True)
                self._thread.start()
                atexit.register(at_exit)
            self._arrived.extend(jobs)
            self._wake.notify()

    def abort(self, error: Exception) -> None:
        """From another thread: nothing can be computed any more. Every waiting job fails, also those in flight."""
        self.failure = error
        self._scheduler.fail_all(error)
        with self._wake:
            left, self._arrived = list(self._arrived), deque()
        for job in left:
            settle(job.future, error)

    def close(self) -> None:
        """Returns when all jobs are finished."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            # After a failure elsewhere the thread may wait for a device that never answers.
            self._thread.join(None if self.failure is None else ABANDON_SECONDS)

    def _serve(self) -> None:
        sys.setswitchinterval(min(sys.getswitchinterval(), LOCK_SECONDS))
        try:
            self._run_steps()
        except Exception as error:  # a defect of ours: nobody may be left waiting
            self.abort(error)
            raise

    def _run_steps(self) -> None:
        in_flight, max_in_flight = self._in_flight, self._max_in_flight
        # On a CPU a launch may be the whole step.
        feeding: AbstractContextManager[None] = self._callers.giving_way if max_in_flight > 1 else nullcontext()
        while self._admit():
            if max_in_flight > 1 and self._waited():
                continue  # with what has come meanwhile
            with feeding:
                launched = self._scheduler.launch()
            if launched is not None:
                in_flight.append(launched)
            elif len(in_flight) == 1 and max_in_flight > 1 and self._wait_for_arrival(in_flight[0]):
                continue
            if in_flight and (launched is None or len(in_flight) >= max_in_flight):
                self._scheduler.collect(in_flight[0])
                in_flight.popleft()
            with feeding:
                for job in self._scheduler.finished():
                    job.finish(self._model, self.replica)

    def _admit(self) -> bool:
        """Sleeps while there is nothing to do; False when the loop is closed and has nothing left."""
        with self._wake:
            while not (self._arrived or self._scheduler.waiting or self._in_flight or self._closing):
                self._wake.wait()
            if self._closing and not (self._arrived or self._scheduler.waiting or self._in_flight):
                return False
            while self._arrived:
                self._scheduler.admit(self._arrived.popleft())
            return True

    def _waited(self) -> bool:
        """Whether the next launch was put off, with one step in flight or none."""
        if len(self._in_flight) > 1:
            return False
        return any(map(self._wait_for_step, self._in_flight)) or self._wait_for_burst()

    def _wait_for_step(self, launched: InFlightStep) -> bool:
        """Until a step is nearly done, if that is not yet so. Launching the next one at once would leave out the
        requests that come meanwhile; launching it at the end would leave the device idle."""
        times = self._scheduler.times
        if times.until_nearly_done(launched) <= SHORT_NAP:
            return False
        while (seconds := times.until_nearly_done(launched)) > 0:
            if launched.ready:
                times.ready_early(launched)
                return False
            time.sleep(min(seconds, LONG_NAP))
        return True

    def _wait_for_arrival(self, launched: InFlightStep) -> bool:
        """Whether somebody came while the device had one step and nobody waited: until it is soon done."""
        with self._wake:
            while not (self._scheduler.waiting or self._arrived or self._closing or launched.ready):
                seconds = self._scheduler.times.until_soon_done(launched)
                if seconds <= SHORT_NAP:
                    break
                self._wake.wait(min(seconds, LONG_NAP))
            return bool(self._arrived)

    def _wait_for_burst(self) -> bool:
        """Whether a step was put off a little, for requests that callers are bringing; behind another, no longer than
        that one takes."""
        since, tokens = self._scheduler.oldest_arrival, self._scheduler.waiting_tokens
        if not self._callers.coming or tokens >= BURST_PART * self._scheduler.max_tokens:
            return False
        left = since + BURST_SECONDS - time.perf_counter()
        left = min([left, *map(self._scheduler.times.until_soon_done, self._in_flight)])
        if left <= SHORT_NAP:
            return False
        time.sleep(min(left, BURST_NAP))
        return True
