"""The compiled programs, and the only place that compiles: keys are buckets, and a count is kept.

A program not compiled yet is compiled in the background while a larger compiled one serves, if there is one; otherwise
the caller waits for it. Over a mesh every device runs the program on its own share of the model, under one `shard_map`.
What goes into a program is `pack`'s work; the network is `models.decoder`; who holds what is `models.layout`.
"""

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from onepass.attention.base import Attention, RowShape
from onepass.attention.places import Places
from onepass.engine.buckets import holds
from onepass.engine.contexts import KeptContext
from onepass.engine.pack import Batch, sizes, taken_apart
from onepass.engine.work import Work
from onepass.models import decoder
from onepass.models.config import ModelConfig
from onepass.models.decoder import Prefix, Rows
from onepass.models.layout import KEYS, Layout
from onepass.models.products import Products, XlaProducts
from onepass.models.weights import Weights

WORTH_BORROWING = 4.0  # a larger program may do at most this many times the work while the right one compiles


@dataclass(frozen=True)
class Program:
    """A program's whole identity. `keep` > 0: it also returns the rows' contexts, padded to that many keys."""

    kind: Literal["score", "prefill"]
    shape: RowShape
    attention: str
    keep: int = 0


@dataclass(frozen=True)
class Computed:
    """What a step leaves: label logits, log-sum-exps where they were asked for, and kept (k, v, hidden) a row."""

    logits: jax.Array | None
    logsumexp: jax.Array | None
    kept: tuple[tuple[jax.Array, jax.Array, jax.Array], ...]


class Runner:
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
        """`weights` lie as `Layout(config, mesh)` says. `products` None is XLA's. `tells_host`: programs write what is
        read out into the host's memory themselves; a copy asked for afterwards takes a GPU 0.3 ms."""
        self._products = products or XlaProducts()
        self.tells_host = tells_host
        self._layout = Layout(config, mesh)
        self._config = self._layout.share
        self._weights = weights
        self._attentions = attentions
        self._dtype = weights.embed.dtype
        self._work = Work(self._config, self._dtype.itemsize)
        self._programs: dict[Program, Any] = {}
        self._vocabularies: dict[tuple[int, int], Any] = {}  # by rows and read-outs
        self._compiling: dict[Program, Future[None]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, "onepass-compile") if background else None
        self.compilations = 0
        self.compile_seconds = 0.0

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
        executable = self.lower(program).compile()
        vocabulary = self._vocabulary(program.shape) if program.kind == "score" else None
        with self._lock:
            self._programs[program] = executable
            if vocabulary is not None:
                self._vocabularies[_readouts(program.shape)] = vocabulary
            self._compiling.pop(program, None)
            self.compilations += 1
            self.compile_seconds += time.perf_counter() - start

    def _vocabulary(self, shape: RowShape) -> Any:
        """Compiled with the first program that has so many read-outs."""
        return self._vocabularies.get(_readouts(shape)) or self.lower_vocabulary(shape).compile()

    def lower(self, program: Program, platform: str | None = None) -> jax.stages.Lowered:
        """What the compiler is given; for `platform`, where the weights are shapes on devices that are not here."""
        return _lowered(self._on_every_device(program), self._abstract_arguments(program), platform)

    def lower_vocabulary(self, shape: RowShape, platform: str | None = None) -> jax.stages.Lowered:
        """The pass over the vocabulary for so many read-outs. Not a branch of the program: the host would have to wait
        for the device to know which way to go."""

        def run(weights: Weights, hidden: Any) -> Any:
            return self._told(decoder.over_vocabulary(weights, hidden, self._config.split))

        function, layout = run, self._layout
        if layout.mesh is not None and layout.devices > 1:
            specs = (layout.weight_specs(), P())
            function = jax.shard_map(run, mesh=layout.mesh, in_specs=specs, out_specs=P(), check_vma=False)
        size = (*_readouts(shape), layout.wide.hidden_size)
        hidden = jax.ShapeDtypeStruct(size, self._dtype, sharding=layout.sharding(P()))
        return _lowered(function, (self._weights, hidden), platform)

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
            total = self._vocabularies[_readouts(program.shape)](self._weights, hidden)
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

    def _on_every_device(self, program: Program) -> Any:
        function, mesh = self._function(program), self._layout.mesh
        if mesh is None or self._layout.devices == 1:
            return function
        row = (KEYS, KEYS, P())
        rows = program.shape.rows
        arguments = (self._layout.weight_specs(), P(), (row,) * rows if program.shape.prefix else ())
        results = (P(), P(), (row,) * rows if program.keep else ())
        # Not checked: Pallas kernels do not say over which axes their results vary.
        return jax.shard_map(function, mesh=mesh, in_specs=arguments, out_specs=results, check_vma=False)

    def _function(self, program: Program) -> Any:
        config, shape = self._config, program.shape
        attention = self._attentions[program.attention]

        def run(weights: Weights, numbers: Any, prefixes: Any) -> tuple[Any, Any, Any]:
            rows, labels, lengths = _taken_apart(numbers, shape)
            prefix = _stacked(prefixes, lengths) if shape.prefix else None
            hidden, k, v = decoder.hidden_states(config, attention, shape, weights, rows, prefix, self._products)
            kept = _kept(k, v, hidden, prefix, lengths, program.keep, shape) if program.keep else ()
            if program.kind == "prefill":
                return None, None, kept
            return hidden, self._told(decoder.read_out(weights, hidden, labels, config.split)), kept

        return run

    def _told(self, read: jax.Array) -> jax.Array:
        return jax.device_put(read, jax.memory.Space.Host) if self.tells_host else read

    def _abstract_arguments(self, program: Program) -> tuple[Any, ...]:
        c, shape, layout = self._layout.wide, program.shape, self._layout

        def array(size: tuple[int, ...], dtype: Any = jnp.int32, spec: P = P()) -> Any:  # noqa: B008 - immutable
            return jax.ShapeDtypeStruct(size, dtype, sharding=layout.sharding(spec))

        numbers = array((sum(map(math.prod, sizes(shape))),))
        kv = array((c.num_layers, shape.prefix, c.num_kv_heads, c.head_dim), self._dtype, KEYS)
        prefixes = ((kv, kv, array((c.hidden_size,), self._dtype)),) * shape.rows if shape.prefix else ()
        return self._weights, numbers, prefixes


def _in_one(batch: Batch, contexts: Sequence[tuple[KeptContext | None, int]], shape: RowShape) -> np.ndarray:
    """A batch whose parts came one by one, from another process, as one array."""
    rows, places = batch.rows, batch.rows.places
    lengths = np.zeros(shape.rows, np.int32)
    lengths[: len(contexts)] = [length for _, length in contexts]
    parts = (rows.tokens, places.segment, places.parent, places.position, rows.readouts, batch.labels, lengths)
    return np.concatenate([np.asarray(part, np.int32).reshape(-1) for part in parts])


def _taken_apart(numbers: jax.Array, shape: RowShape) -> tuple[Rows, jax.Array, jax.Array]:
    """Rows, labels and the lengths of prefixes."""
    tokens, segment, parent, position, readouts, labels, lengths = taken_apart(numbers, shape)
    return Rows(tokens, Places(segment, parent, position), readouts), labels, lengths


def _lowered(function: Any, arguments: tuple[Any, ...], platform: str | None) -> jax.stages.Lowered:
    traced = jax.jit(function).trace(*arguments)
    return traced.lower(lowering_platforms=(platform,)) if platform else traced.lower()


def _readouts(shape: RowShape) -> tuple[int, int]:
    return shape.rows, shape.readouts


def _as_wide(keys: jax.Array, width: int) -> jax.Array:
    """Keys or values cut or padded to `width`: a small copy on the device while the program of the right width is
    compiled, and nothing at all otherwise."""
    spare = width - keys.shape[1]
    return (
        keys
        if not spare
        else jax.lax.pad(keys, jnp.zeros((), keys.dtype), [(0, 0, 0), (0, spare, 0), *[(0, 0, 0)] * 2])
    )


def _stacked(prefixes: Any, lengths: Any) -> Prefix:
    k, v = (jnp.stack([p[i] for p in prefixes], axis=1) for i in (0, 1))
    return Prefix(k, v, lengths, jnp.stack([p[2] for p in prefixes]))


def _kept(
    k: Any, v: Any, hidden: Any, prefix: Prefix | None, lengths: Any, keep: int, shape: RowShape
) -> tuple[tuple[Any, Any, Any], ...]:
    """Each row's keys and values, after those of its prefix, padded to `keep`, and the hidden state of its context's
    last token, which `pack` puts in the last read-out."""

    def joined(old: Any, new: Any, length: Any) -> Any:
        if old is not None:
            room = jnp.concatenate([old, jnp.zeros_like(new)], axis=1)
            new = jax.lax.dynamic_update_slice_in_dim(room, new, length, axis=1)
        new = new[:, :keep]
        return jnp.pad(new, ((0, 0), (0, keep - new.shape[1]), (0, 0), (0, 0)))

    out = []
    for row in range(shape.rows):
        old_k, old_v = (None, None) if prefix is None else (prefix.k[:, row], prefix.v[:, row])
        kept_k, kept_v = joined(old_k, k[:, row], lengths[row]), joined(old_v, v[:, row], lengths[row])
        out.append((kept_k, kept_v, hidden[row, -1]))
    return tuple(out)
