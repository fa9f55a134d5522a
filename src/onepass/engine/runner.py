"""The compiled programs, and the only place that compiles: keys are buckets, and a count is kept.

A program not compiled yet is compiled in the background while a larger compiled one serves, if there is one; otherwise
the caller waits for it. What a program is and computes is `lowering`; what goes into it is `pack`'s work.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from onepass.attention.base import Attention, RowShape
from onepass.engine.buckets import holds
from onepass.engine.contexts import KeptContext
from onepass.engine.lowering import Lowering, Program, read_outs
from onepass.engine.pack import Batch
from onepass.engine.work import Work
from onepass.models.config import ModelConfig
from onepass.models.layout import Layout
from onepass.models.products import Products, XlaProducts
from onepass.models.weights import Weights

WORTH_BORROWING = 4.0  # a larger program may do at most this many times the work while the right one compiles


@dataclass(frozen=True)
class Computed:
    """What a step leaves: label logits, log-sum-exps where they were asked for, and kept (k, v, hidden) a row."""

    logits: jax.Array | None
    logsumexp: jax.Array | None
    kept: tuple[tuple[jax.Array, jax.Array, jax.Array], ...]


class Runner:
    compiled_at_once = 2  # by those who want several programs: one is lowered, which is Python, while XLA has the other

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        attentions: dict[str, Attention],
        background: bool = True,
        mesh: Mesh | None = None,
        products: Products | None = None,
        tells_host: bool = False,
    ) -> None:
        """`weights` lie as `Layout(config, mesh)` says. `products` None is XLA's. `tells_host` is `Lowering`'s."""
        layout = Layout(config, mesh)
        self.lowering = Lowering(layout, weights, attentions, products or XlaProducts(), tells_host)
        self._weights = weights
        self._work = Work.of(layout.share, weights)
        self._programs: dict[Program, Any] = {}
        self._vocabularies: dict[tuple[int, int], Any] = {}  # by rows and read-outs
        self._compiling: dict[Program, Future[None]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, "onepass-compile") if background else None
        self.compilations = 0
        self.compile_seconds = 0.0

    @property
    def tells_host(self) -> bool:
        return self.lowering.tells_host

    def share_programs(self, other: "Runner") -> None:
        """Use what `other` has compiled and will compile, and give it ours: for scorers of one model that differ in
        what they plan."""
        mine, its = self.lowering, other.lowering
        same = mine.weights is its.weights and mine.attentions == its.attentions and mine.products == its.products
        if not same or mine.tells_host != its.tells_host or mine.layout != its.layout:
            raise ValueError("programs can be shared on the same weights with the same kernels; these are others")
        if self._programs:
            raise ValueError(f"programs can be shared before the first is compiled; there are {len(self._programs)}")
        self._programs, self._vocabularies, self._lock = other._programs, other._vocabularies, other._lock

    def compiled(self, program: Program) -> bool:
        return program in self._programs

    @property
    def compiling(self) -> int:
        """How many programs are being compiled, or wait for it, in the background."""
        return len(self._compiling)

    def choose(self, wanted: Program) -> Program:
        """The program to run now: `wanted` if it is compiled; else the cheapest compiled one that can stand in for it
        (fewer rows count too) while `wanted` compiles; else `wanted`, for which the caller waits."""
        if wanted in self._programs or self._pool is None:
            return wanted
        stand_in = self._stand_in(wanted)
        if stand_in is None:
            return wanted
        self.compile_soon(wanted)
        return stand_in

    def _stand_in(self, wanted: Program) -> Program | None:
        limit = WORTH_BORROWING * self._work.shape_flops(wanted.shape)
        one_row = replace(wanted.shape, rows=1)
        fitting = [
            p
            for p in list(self._programs)
            if (p.kind, p.attention) == (wanted.kind, wanted.attention)
            and p.keep >= wanted.keep
            and bool(p.keep) == bool(wanted.keep)
            and (holds(p.shape, wanted.shape) or (p.shape.rows == 1 and holds(p.shape, one_row)))
            and self._cost(p, wanted) <= limit
        ]
        return min(fitting, key=lambda p: self._cost(p, wanted), default=None)

    def _cost(self, program: Program, wanted: Program) -> float:
        """What `program` does to stand in for `wanted`: padding rows cost as much as real ones."""
        return max(1.0, wanted.shape.rows / program.shape.rows) * self._work.shape_flops(program.shape)

    def compile_soon(self, program: Program) -> None:
        assert self._pool is not None
        with self._lock:
            if program in self._programs or program in self._compiling:
                return
            self._compiling[program] = self._pool.submit(self._compile, program)

    def compile(self, program: Program) -> None:
        """Compile now, or wait for the compilation under way."""
        if program in self._programs:
            return
        with self._lock:
            under_way = self._compiling.get(program)
        if under_way is not None:
            under_way.result()
        elif program not in self._programs:
            self._compile(program)

    def settle(self) -> None:
        """Wait for what is being compiled in the background."""
        with self._lock:
            under_way = list(self._compiling.values())
        wait(under_way)

    def _compile(self, program: Program) -> None:
        start = time.perf_counter()
        executable = self.lowering.lower(program).compile()
        vocabulary = self._vocabulary(program.shape) if program.kind == "score" else None
        with self._lock:
            self._programs[program] = executable
            if vocabulary is not None:
                self._vocabularies[read_outs(program.shape)] = vocabulary
            self._compiling.pop(program, None)
            self.compilations += 1
            self.compile_seconds += time.perf_counter() - start

    def _vocabulary(self, shape: RowShape) -> Any:
        """Compiled with the first program that has so many read-outs."""
        return self._vocabularies.get(read_outs(shape)) or self.lowering.lower_vocabulary(shape).compile()

    def run(
        self,
        program: Program,
        batch: Batch,
        contexts: Sequence[tuple[KeptContext | None, int]],
        whole_vocabulary: bool,
        keep: int | None = None,
    ) -> Computed:
        """`contexts` gives each row its prefix and how many of its tokens to use; `keep` is the width at which contexts
        are wanted, where a program that stands in keeps them wider. Does not wait for the device."""
        self.compile(program)
        prefixes = self._prefixes(program.shape, contexts)
        numbers = _in_one(batch, contexts, program.shape) if batch.numbers is None else batch.numbers
        hidden, logits, kept = self._programs[program](self._weights, numbers, prefixes)
        total = None
        if whole_vocabulary and program.kind == "score":
            total = self._vocabularies[read_outs(program.shape)](self._weights, hidden)
        if keep is not None and keep < program.keep:
            kept = tuple((_as_wide(k, keep), _as_wide(v, keep), hidden) for k, v, hidden in kept)
        return Computed(logits, total, kept)

    def explained(self, error: Exception) -> Exception:
        """What is behind a step's error, for those who know more than the device said."""
        return error

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _prefixes(
        self, shape: RowShape, contexts: Sequence[tuple[KeptContext | None, int]]
    ) -> tuple[tuple[jax.Array, ...], ...]:
        if not shape.prefix:
            return ()
        kept = [context for context, _ in contexts]
        assert all(c is not None and c.width <= shape.prefix for c in kept), "a prefix wider than the program's"
        kept += [kept[0]] * (shape.rows - len(kept))  # padding rows: any keys do, their length is 0
        return tuple(
            (_as_wide(c.k, shape.prefix), _as_wide(c.v, shape.prefix), c.hidden) for c in kept if c is not None
        )


def _in_one(batch: Batch, contexts: Sequence[tuple[KeptContext | None, int]], shape: RowShape) -> np.ndarray:
    """A batch whose parts came one by one, from another process, as one array."""
    rows, places = batch.rows, batch.rows.places
    lengths = np.zeros(shape.rows, np.int32)
    lengths[: len(contexts)] = [length for _, length in contexts]
    parts = (rows.tokens, places.segment, places.parent, places.position, rows.readouts, batch.labels, lengths)
    return np.concatenate([np.asarray(part, np.int32).reshape(-1) for part in parts])


def _as_wide(keys: jax.Array, width: int) -> jax.Array:
    """Keys or values cut or padded to `width`: a small copy on the device while the program of the right width is
    compiled, and nothing at all otherwise."""
    spare = width - keys.shape[1]
    return (
        keys
        if not spare
        else jax.lax.pad(keys, jnp.zeros((), keys.dtype), [(0, 0, 0), (0, spare, 0), *[(0, 0, 0)] * 2])
    )
