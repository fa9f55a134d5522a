"""The pool of pages, and the steps that run on it: where the device is given its work.

Compiling is `programs.compiled`; what a program is and computes is `programs.builder`; what goes into it is `packing`.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import jax
import numpy as np

from onepass.attention.base import KvPool, StepShape
from onepass.engine.packing import Packed, pack
from onepass.engine.programs.builder import COPIES, Program, ProgramBuilder
from onepass.engine.programs.compiled import CompiledProgram, CompiledPrograms, Store
from onepass.loading.tensor_reader import Progress, silent


@dataclass(frozen=True)
class StepOutput:
    """What a step leaves: the logits of its pairs, in so many arrays, and `vocabulary` where it was asked for: at each
    read-out the log-sum-exp, the largest logit and its token, [3, read-outs]."""

    logits: list[jax.Array]
    vocabulary: jax.Array | None


class Runner(CompiledPrograms):
    """Compiled programs with the pool that they run on."""

    def __init__(self, builder: ProgramBuilder, store: Store | None = None) -> None:
        super().__init__(builder, store)
        self._weights = builder.weights
        self._pool: KvPool | None = None
        self._running = threading.RLock()  # one at a time has the pool
        self.on_step: Callable[[StepShape, Packed], None] | None = None  # called with every step before it runs

    @property
    def writes_to_host(self) -> bool:
        return self.builder.writes_to_host

    def compile_all(self, progress: Progress = silent) -> list[CompiledProgram]:
        """Every program of the set, the one that serves everything first, several at once: one is lowered, which is
        Python's work, while XLA has the others. What is compiled in other processes is waited for at the end."""
        programs = self.builder.programs()
        apart = [] if self._store is None else self._store.compile_ahead(programs)
        here = [program for program in programs if program not in apart]
        with ThreadPoolExecutor(self.compiled_at_once, "onepass-compile") as pool:
            try:
                for done, _ in enumerate(pool.map(self.compile, [*here, *apart])):
                    progress("compile", done + 1, len(programs))
            except BaseException:  # Ctrl-C, too: the pool would wait for all of them
                pool.shutdown(wait=False, cancel_futures=True)
                if self._store is not None:
                    self._store.stop_compiling()
                raise
        self._run_once()
        return [self._known[program] for program in programs]

    def _run_once(self) -> None:
        """Every program on a step without tokens: a device loads its code when it is first run, one from disk that does
        not run is found now, and the pool is there."""
        one = np.zeros(1, np.int32)
        for shape in self.builder.ladder.shapes:
            empty = pack([], shape)
            for size in self.builder.vocabulary_sizes(shape):
                packed = replace(empty, num_readouts=size, pair_at=one, labels=one)
                jax.block_until_ready(self.run(shape, packed, [(0, 0)], whole_vocabulary=True).logits)

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
            readouts = np.array([packed.num_readouts], np.int32)
            vocabulary = self._call(self._vocabulary(shape, packed), self._weights, hidden, readouts)
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

    def explained(self, error: Exception) -> Exception:
        """What is behind a step's error, for those who know more than the device said."""
        return error

    def close(self) -> None:
        self._pool = None


def _in_groups[Thing](things: Sequence[Thing], size: int) -> list[Sequence[Thing]]:
    return [things[at : at + size] for at in range(0, len(things), size)]
