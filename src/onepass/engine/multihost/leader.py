"""A runner whose every step is run by other processes too: process 0 says what it compiles and runs, and they follow.

    compile   a program; each follower answers `compiled`, and only then is it run
    pool      a new, empty pool
    step      a step's numbers, which hold its page table, and what else is run with it
    end       there is nothing more to come; the follower leaves first, for JAX's service lives in process 0

A follower that goes or fails ends the engine with an error that says so; nobody is left waiting. The other side is
`follower`; the lines are `parallel.hosts`.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from onepass.attention.base import StepShape
from onepass.engine.packing import Packed
from onepass.engine.programs.builder import Program
from onepass.engine.runner import Runner, StepOutput
from onepass.errors import OnepassError
from onepass.ipc import Frame, FrameSocket

COMPILE_SECONDS = 1800.0
LEAVE_SECONDS = 20.0
NOTICE_SECONDS = 5.0


class FollowerSet:
    """The lines to all followers; `lost` is called once, with the reason, when one of them goes or fails."""

    def __init__(self, lines: Sequence[FrameSocket]) -> None:
        self._lines = list(lines)
        self._changed = threading.Condition()
        self._compiled: Counter[Program] = Counter()
        self._closing = False
        self.failure: OnepassError | None = None
        self.lost: Callable[[Exception], None] = lambda error: None
        self._listening = [
            threading.Thread(target=self._listen, args=(number, line), name=f"onepass-follower-{number}", daemon=True)
            for number, line in enumerate(self._lines, 1)
        ]
        for thread in self._listening:
            thread.start()

    def runner(self, *arguments: Any) -> "LeaderRunner":
        return LeaderRunner(*arguments, followers=self)

    def send(self, frame: Frame) -> None:
        if self.failure is not None:
            raise self.failure
        for number, line in enumerate(self._lines, 1):
            try:
                line.write(frame)
            except OSError as error:
                self._fail(f"process {number} has gone: {error}")
                raise self.failure or OnepassError(str(error)) from error

    def wait_compiled(self, program: Program, seconds: float = COMPILE_SECONDS) -> None:
        with self._changed:
            done = self._changed.wait_for(
                lambda: self.failure is not None or self._compiled[program] == len(self._lines), seconds
            )
        if self.failure is not None:
            raise self.failure
        if not done:
            raise OnepassError(f"a follower did not compile {program} within {seconds:g} s")

    def behind(self, error: Exception) -> Exception:
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None, NOTICE_SECONDS)
        return self.failure or error

    def close(self) -> None:
        self._closing = True
        for line, thread in zip(self._lines, self._listening, strict=True):
            with suppress(OSError):
                line.write(Frame("end"))
                if self.failure is None:
                    thread.join(LEAVE_SECONDS)
            line.close()

    def _listen(self, number: int, line: FrameSocket) -> None:
        try:
            while (frame := line.read()) is not None:
                if frame.kind == "compiled":
                    with self._changed:
                        self._compiled[Program(**frame.fields)] += 1
                        self._changed.notify_all()
                else:
                    self._fail(f"process {number} failed: {frame.fields.get('reason')}")
                    return
            self._fail(f"process {number} has gone")
        except OSError as error:
            self._fail(f"process {number} has gone: {error}")

    def _fail(self, reason: str) -> None:
        with self._changed:
            if self._closing or self.failure is not None:
                return
            self.failure = OnepassError(f"{reason}; all processes that share the model must be started again")
            self._changed.notify_all()
        self.lost(self.failure)


class LeaderRunner(Runner):
    compiled_at_once = 1  # followers compile what they are given, one after the other

    def __init__(self, *arguments: Any, followers: FollowerSet) -> None:
        super().__init__(*arguments)
        self._followers = followers

    def _add(self, program: Program) -> None:
        self._followers.send(Frame("compile", fields=asdict(program)))
        super()._add(program)
        self._followers.wait_compiled(program)

    def run(
        self,
        shape: StepShape,
        packed: Packed,
        copies: Sequence[tuple[int, int]] = (),
        whole_vocabulary: bool = False,
    ) -> StepOutput:
        for program in self.needed(shape, packed, copies, whole_vocabulary):
            self.compile(program)
        if self._pool is None:
            self.new_pool()  # before the step, or followers would begin anew after it
        fields = {
            "tokens": shape.tokens,
            "num_readouts": packed.num_readouts,
            "copies": [list(pair) for pair in copies],
            "whole_vocabulary": bool(whole_vocabulary),
        }
        arrays = {"numbers": packed.numbers, "pair_at": packed.pair_at, "labels": packed.labels}
        self._followers.send(Frame("step", 0, fields, {name: a.astype(np.int32) for name, a in arrays.items()}))
        return super().run(shape, packed, copies, whole_vocabulary)

    def new_pool(self) -> Any:
        self._followers.send(Frame("pool"))
        return super().new_pool()

    def explained(self, error: Exception) -> Exception:
        """The device may notice before the line does that a follower has gone."""
        return self._followers.behind(error) if isinstance(error, jax.errors.JaxRuntimeError) else error

    def close(self) -> None:
        super().close()
        self._followers.close()
