"""A runner whose every step is run by other processes too: process 0 says what it compiles and runs, and they follow.

    compile   a program; each follower answers `compiled`, and only then is it run
    step      a program, its arrays, and the numbers of the kept contexts it reads and leaves
    forget    numbers of contexts that nobody holds any more (told with the next step)
    end       there is nothing more to come; the follower leaves first, for JAX's service lives in process 0

A follower that goes or fails ends the engine with an error that says so; nobody is left waiting. The other side is
`following`; the lines are `parallel.hosts`.
"""

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from onepass.attention.base import RowShape
from onepass.attention.places import Places
from onepass.engine.contexts import KeptContext
from onepass.engine.lowering import Program
from onepass.engine.pack import Batch
from onepass.engine.runner import Computed, Runner
from onepass.errors import OnepassError
from onepass.models.decoder import Rows
from onepass.parallel.wire import Frame, FrameSocket

COMPILE_SECONDS = 1800.0
LEAVE_SECONDS = 20.0
NOTICE_SECONDS = 5.0


class Followers:
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

    def runner(self, *arguments: Any) -> "LeadingRunner":
        return LeadingRunner(*arguments, followers=self)

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
                        self._compiled[program_from(frame.fields)] += 1
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


class LeadingRunner(Runner):
    compiled_at_once = 1  # followers compile what they are told, one after the other

    def __init__(self, *arguments: Any, followers: Followers, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._followers = followers
        self._numbers: dict[int, int] = {}  # id of a context's keys → its number
        self._next = 0
        self._forgotten: list[int] = []

    def _compile(self, program: Program) -> None:
        self._followers.send(Frame("compile", fields=asdict(program)))
        super()._compile(program)
        self._followers.wait_compiled(program)

    def run(
        self,
        program: Program,
        batch: Batch,
        contexts: Sequence[tuple[KeptContext | None, int]],
        whole_vocabulary: bool,
        keep: int | None = None,
    ) -> Computed:
        self.compile(program)
        forgotten, self._forgotten = self._forgotten, []
        step = {
            "program": asdict(program),
            "contexts": [[-1 if kept is None else self._numbers[id(kept.k)], length] for kept, length in contexts],
            "whole_vocabulary": bool(whole_vocabulary),
            "keep": keep,
            "first": self._next,
            "forget": forgotten,
        }
        self._followers.send(Frame("step", fields=step, arrays=arrays_of(batch)))
        computed = super().run(program, batch, contexts, whole_vocabulary, keep)
        for keys, _, _ in computed.kept:
            self._name(keys)
        return computed

    def explained(self, error: Exception) -> Exception:
        """The device may notice before the line does that a follower has gone."""
        return self._followers.behind(error) if isinstance(error, jax.errors.JaxRuntimeError) else error

    def close(self) -> None:
        super().close()
        self._followers.close()

    def _name(self, keys: jax.Array) -> None:
        """A number for as long as anybody here holds the context."""
        number, self._next = self._next, self._next + 1
        self._numbers[id(keys)] = number
        weakref.finalize(keys, self._forget, id(keys), number)

    def _forget(self, key: int, number: int) -> None:
        if self._numbers.get(key) == number:
            del self._numbers[key]
        self._forgotten.append(number)


def program_from(fields: dict[str, Any]) -> Program:
    return Program(**{**fields, "shape": RowShape(**fields["shape"])})


def arrays_of(batch: Batch) -> dict[str, np.ndarray]:
    rows = batch.rows
    places = {name: getattr(rows.places, name) for name in ("segment", "parent", "position")}
    named = {"tokens": rows.tokens, **places, "readouts": rows.readouts, "labels": batch.labels}
    return {name: np.asarray(array) for name, array in named.items()}


def batch_from(arrays: dict[str, Any]) -> Batch:
    places = Places(arrays["segment"], arrays["parent"], arrays["position"])
    return Batch(Rows(arrays["tokens"], places, arrays["readouts"]), arrays["labels"])
