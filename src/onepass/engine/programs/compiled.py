"""The compiled programs of a model: the only place that compiles.

Programs come from the store on disk where it has them, else from the compiler, whose work the store then keeps; a count
of both is kept. What a program is and computes is `builder`; who runs them is `engine.runner`.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import jax

from onepass.engine.programs.builder import Program, ProgramBuilder

log = logging.getLogger("onepass")


@dataclass(frozen=True)
class CompiledProgram:
    """A program that is there, and how it came."""

    name: str
    tokens: int
    seconds: float
    bytes: int
    source: Literal["compiled", "disk"]


@dataclass(frozen=True)
class Made:
    """An executable that was compiled just now, and its size on disk; `read_back`: by another process, and read from
    there."""

    executable: Any
    bytes: int
    read_back: bool


class Store(Protocol):
    """Where compiled programs are kept (`kept`)."""

    def load(self, program: Program) -> Any | None: ...

    def compile_ahead(self, programs: Sequence[Program]) -> list[Program]:
        """Begins with those that it can compile beside this process; `compile` waits for them."""
        ...

    def stop_compiling(self) -> None:
        """What was begun ahead; `compile` of it raises then."""
        ...

    def compile(self, program: Program, lower: Callable[[], jax.stages.Lowered]) -> Made:
        """And keep it."""
        ...

    def bytes(self, program: Program) -> int: ...

    def discard(self, program: Program) -> None: ...


class CompiledPrograms:
    compiled_at_once = 4

    def __init__(self, builder: ProgramBuilder, store: Store | None = None) -> None:
        self.builder = builder
        self._store = store
        self._compiled: dict[Program, Any] = {}
        self._known: dict[Program, CompiledProgram] = {}
        self._unproven: set[Program] = set()  # from disk, and not yet run
        self._lock = threading.RLock()
        self._locks: dict[Program, threading.Lock] = {}
        self.compilations = 0
        self.compile_seconds = 0.0

    @property
    def compiling(self) -> int:
        """How many programs are being compiled or read."""
        return sum(lock.locked() for lock in list(self._locks.values()))

    def share_programs(self, other: "CompiledPrograms") -> None:
        """Use what `other` has compiled and will compile, and give it ours: for scorers of one model that differ in
        what they plan."""
        same = self.builder.weights is other.builder.weights  # arrays do not compare to one answer
        if not same or self.builder != other.builder:
            raise ValueError("programs can be shared on the same weights with the same kernels and pool; these differ")
        if self._compiled:
            raise ValueError(f"programs can be shared before the first is compiled; there are {len(self._compiled)}")
        for name in ("_compiled", "_known", "_unproven", "_lock", "_locks"):
            setattr(self, name, getattr(other, name))

    def compile(self, program: Program) -> Any:
        """The executable; made once, however many ask."""
        if (ready := self._compiled.get(program)) is not None:
            return ready
        with self._lock:
            lock = self._locks.setdefault(program, threading.Lock())
        with lock:
            if program not in self._compiled:
                self._add(program)
            return self._compiled[program]

    def _add(self, program: Program) -> None:
        start = time.perf_counter()
        kept = None if self._store is None else self._store.load(program)
        source: Literal["compiled", "disk"] = "compiled" if kept is None else "disk"
        size, unproven = 0, kept is not None
        if self._store is None:
            kept = self.builder.lower(program).compile()
        elif kept is None:
            made = self._store.compile(program, lambda: self.builder.lower(program))
            kept, size, unproven = made.executable, made.bytes, made.read_back
        else:
            size = self._store.bytes(program)
        seconds = time.perf_counter() - start
        with self._lock:
            self._compiled[program] = kept
            self._known[program] = CompiledProgram(str(program), program.tokens, seconds, size, source)
            if unproven:
                self._unproven.add(program)
            if source == "compiled":
                self.compilations += 1
                self.compile_seconds += seconds
        log.info("program %s: %s in %.2f s", program, source, seconds)

    def _call(self, program: Program, *arguments: Any) -> Any:
        executable = self.compile(program)
        if program not in self._unproven:
            return executable(*arguments)
        # An executable from disk that cannot run is thrown away and compiled, once.
        try:
            out = executable(*arguments)
        except Exception as error:
            log.warning("program %s from disk does not run, compiling it: %s", program, error)
            self._replace(program)
            return self._compiled[program](*arguments)
        self._unproven.discard(program)
        return out

    def _replace(self, program: Program) -> None:
        assert self._store is not None
        with self._lock:
            self._unproven.discard(program)
            self._compiled.pop(program, None)
        self._store.discard(program)
        self.compile(program)

    def texts(self) -> dict[Program, str]:
        """What XLA made of each program that is there."""
        return {program: executable.as_text() for program, executable in self._compiled.items()}
