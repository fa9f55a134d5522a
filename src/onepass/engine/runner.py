"""The compiled programs and the pool of pages: the only place that compiles, and where the device is given its work.

Programs come from the store on disk where it has them, else from the compiler, whose work the store then keeps; a count
of both is kept. What a program is and computes is `builder`; what goes into it is `packing`.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import jax
import numpy as np

from onepass.attention.base import KvPool, StepShape
from onepass.engine.packing import Packed, pack
from onepass.engine.programs.builder import COPIES, Program, ProgramBuilder
from onepass.loading.tensor_reader import Progress, silent

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
class StepOutput:
    """What a step leaves: the logits of its pairs, in so many arrays, and `vocabulary` where it was asked for: at each
    read-out the log-sum-exp, the largest logit and its token, [3, read-outs]."""

    logits: list[jax.Array]
    vocabulary: jax.Array | None


class Store(Protocol):
    """Where compiled programs are kept (`store`)."""

    def load(self, program: Program) -> Any | None: ...

    def compile(self, lowered: jax.stages.Lowered) -> Any:
        """Such that it can be kept."""
        ...

    def bytes(self, program: Program) -> int: ...

    def save(self, program: Program, compiled: Any) -> int: ...

    def discard(self, program: Program) -> None: ...


class Runner:
    def __init__(self, builder: ProgramBuilder, store: Store | None = None) -> None:
        self.builder = builder
        self._store = store
        self._weights = builder.weights
        self._compiled: dict[Program, Any] = {}
        self._known: dict[Program, CompiledProgram] = {}
        self._unproven: set[Program] = set()  # from disk, and not yet run
        self._lock = threading.RLock()
        self._locks: dict[Program, threading.Lock] = {}
        self._pool: KvPool | None = None
        self._running = threading.RLock()  # one at a time has the pool
        self.compilations = 0
        self.compile_seconds = 0.0
        self.on_step: Callable[[StepShape, Packed], None] | None = None  # called with every step before it runs

    @property
    def writes_to_host(self) -> bool:
        return self.builder.writes_to_host

    @property
    def compiling(self) -> int:
        """How many programs are being compiled or read."""
        return sum(lock.locked() for lock in list(self._locks.values()))

    def share_programs(self, other: "Runner") -> None:
        """Use what `other` has compiled and will compile, and give it ours: for scorers of one model that differ in
        what they plan."""
        same = self.builder.weights is other.builder.weights  # arrays do not compare to one answer
        if not same or self.builder != other.builder:
            raise ValueError("programs can be shared on the same weights with the same kernels and pool; these differ")
        if self._compiled:
            raise ValueError(f"programs can be shared before the first is compiled; there are {len(self._compiled)}")
        for name in ("_compiled", "_known", "_unproven", "_lock", "_locks"):
            setattr(self, name, getattr(other, name))

    def compile_all(self, progress: Progress = silent) -> list[CompiledProgram]:
        """Every program of the set, the one that serves everything first. Two at once: one is lowered, which is
        Python's work, while XLA has the other."""
        programs = self.builder.programs()
        with ThreadPoolExecutor(self.compiled_at_once, "onepass-compile") as pool:
            for done, _ in enumerate(pool.map(self.compile, programs)):
                progress("compile", done + 1, len(programs))
        self._run_once()
        return [self._known[program] for program in programs]

    compiled_at_once = 4

    def _run_once(self) -> None:
        """Every program on a step without tokens: a device loads its code when it is first run, one from disk that does
        not run is found now, and the pool is there."""
        one = np.zeros(1, np.int32)
        for shape in self.builder.ladder.shapes:
            empty = pack([], shape)
            for size in self.builder.vocabulary_sizes(shape):
                packed = replace(empty, num_readouts=size, pair_at=one, labels=one)
                jax.block_until_ready(self.run(shape, packed, [(0, 0)], whole_vocabulary=True).logits)

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
        size = 0
        if kept is None:
            lowered = self.builder.lower(program)
            if self._store is None:
                kept = lowered.compile()
            else:
                kept = self._store.compile(lowered)
                size = self._store.save(program, kept)
        elif self._store is not None:
            size = self._store.bytes(program)
        seconds = time.perf_counter() - start
        with self._lock:
            self._compiled[program] = kept
            self._known[program] = CompiledProgram(str(program), program.tokens, seconds, size, source)
            if source == "disk":
                self._unproven.add(program)
            else:
                self.compilations += 1
                self.compile_seconds += seconds
        log.info("program %s: %s in %.2f s", program, source, seconds)

    def run(
        self,
        shape: StepShape,
        packed: Packed,
        copies: Sequence[tuple[int, int]] = (),
        whole_vocabulary: bool = False,
    ) -> StepOutput:
        """A step, after copying pages (from, to). Does not wait for the device."""
        with self._running:
            return self._run(shape, packed, copies, whole_vocabulary)

    def _run(
        self, shape: StepShape, packed: Packed, copies: Sequence[tuple[int, int]], whole_vocabulary: bool
    ) -> StepOutput:
        if self.on_step is not None:
            self.on_step(shape, packed)
        pool = self._pool if self._pool is not None else self.new_pool()
        for some in _in_groups(copies, COPIES):
            pages = np.zeros((2, COPIES), np.int32)
            pages[:, : len(some)] = np.array(some, np.int32).T
            pool = self._pool = self._call(Program("copy"), pool, pages)
        tokens = shape.tokens
        hidden, logits, self._pool = self._call(Program("step", tokens), self._weights, packed.numbers, pool)
        out = [logits]
        for at in range(0, len(packed.pair_at), shape.pairs):
            pairs = np.zeros((2, shape.pairs), np.int32)
            part = slice(at, at + shape.pairs)
            count = len(packed.pair_at[part])
            pairs[0, :count], pairs[1, :count] = packed.pair_at[part], packed.labels[part]
            out.append(self._call(Program("labels", tokens), self._weights, hidden, pairs))
        vocabulary = None
        if whole_vocabulary:
            vocabulary = self._call(self._vocabulary(shape, packed), self._weights, hidden, packed.numbers)
        return StepOutput(out, vocabulary)

    def needed(
        self, shape: StepShape, packed: Packed, copies: Sequence[tuple[int, int]], whole_vocabulary: bool
    ) -> list[Program]:
        """The programs that `run` calls for these."""
        programs = [Program("step", shape.tokens)]
        programs += [Program("copy")] if copies else []
        programs += [Program("labels", shape.tokens)] if len(packed.pair_at) else []
        return programs + ([self._vocabulary(shape, packed)] if whole_vocabulary else [])

    def _vocabulary(self, shape: StepShape, packed: Packed) -> Program:
        size = next(n for n in self.builder.vocabulary_sizes(shape) if n >= packed.num_readouts)
        return Program("vocabulary", shape.tokens, size)

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

    def new_pool(self) -> KvPool:
        """An empty pool, in place of one that a failed step took with it."""
        shapes = self.builder.pool()
        make: Callable[[], KvPool] = jax.jit(
            lambda: self.builder.empty_pool(shapes),
            out_shardings=None if self.builder.layout.mesh is None else jax.tree.map(lambda a: a.sharding, shapes),
        )
        self._pool = None
        self._pool = make()
        return self._pool

    def pool_lost(self) -> bool:
        """Whether the pool's contents cannot be relied on: a step that failed had it."""
        if self._pool is None:
            return False
        try:
            jax.block_until_ready(self._pool)
        except Exception:
            return True
        return bool(self._pool.k.is_deleted() or self._pool.v.is_deleted())

    def texts(self) -> dict[Program, str]:
        """What XLA made of each program that is there."""
        return {program: executable.as_text() for program, executable in self._compiled.items()}

    def explained(self, error: Exception) -> Exception:
        """What is behind a step's error, for those who know more than the device said."""
        return error

    def close(self) -> None:
        self._pool = None


def _in_groups[Thing](things: Sequence[Thing], size: int) -> list[Sequence[Thing]]:
    return [things[at : at + size] for at in range(0, len(things), size)]
