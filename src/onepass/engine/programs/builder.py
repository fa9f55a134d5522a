"""What is compiled: the functions behind a step, and what the compiler is given.

    step         a rung of tokens: hidden states at its read-outs, the logits of its pairs, the pool with its contexts
    vocabulary   log-sum-exp, largest logit and its token at a rung's read-outs, or at the first few of them
    labels       more pairs of a step than it has room for
    copy         pages into other pages, before a step: a context that begins in the middle of another's page

Over a mesh every device runs the program on its own share of the model, under one `shard_map`. The network is
`models.decoder`; who holds what is `models.layout`. When programs are compiled, kept and run is `runner`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from onepass.attention.base import KvPool, StepShape
from onepass.engine.programs.ladder import Ladder
from onepass.engine.programs.step_arrays import sizes, unpack
from onepass.models import decoder
from onepass.models.decoder import Network
from onepass.models.layout import POOL, Layout
from onepass.models.weights import Weights

COPIES = 8  # pages that one run of the copy program copies
LEAST_VOCABULARY = 16  # read-outs of the smallest pass over the vocabulary


@dataclass(frozen=True)
class Program:
    """A program's whole identity: `size` is a rung's tokens, or how many read-outs of it the vocabulary pass takes."""

    kind: str
    tokens: int = 0
    size: int = 0

    def __str__(self) -> str:
        return "-".join(str(part) for part in (self.kind, self.tokens, self.size) if part)


def zeros(shapes: KvPool) -> KvPool:
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)


@dataclass(frozen=True)
class ProgramBuilder:
    """`writes_to_host`: programs write what is read out into the host's memory themselves; a copy that is asked for
    afterwards takes a GPU 0.3 ms. `empty_pool` makes the pool's arrays from their shapes."""

    layout: Layout
    network: Network
    ladder: Ladder
    weights: Weights
    pages: int  # of the pool
    writes_to_host: bool = False
    many_vocabulary_sizes: bool = True  # not where a loop stops at the last real read-out by itself
    empty_pool: Callable[[KvPool], KvPool] = zeros

    def programs(self) -> list[Program]:
        """The whole set, the one that can serve everything first."""
        out = []
        for shape in reversed(self.ladder.shapes):
            out.append(Program("step", shape.tokens))
            out += [Program("vocabulary", shape.tokens, size) for size in self.vocabulary_sizes(shape)]
            out.append(Program("labels", shape.tokens))
        return [*out, Program("copy")]

    def vocabulary_sizes(self, shape: StepShape) -> list[int]:
        """Parts of the read-outs, too, where padding would be computed."""
        parts = (32, 8, 4, 1) if self.many_vocabulary_sizes else (1,)
        return sorted({max(LEAST_VOCABULARY, shape.readouts // part) for part in parts})

    def lower(self, program: Program, platform: str | None = None) -> jax.stages.Lowered:
        """What the compiler is given; for `platform`, where the weights are shapes on devices that are not here."""
        function, arguments, donated = getattr(self, f"_{program.kind}")(program)
        options = dict(self.network.ops.compiler_options(program.tokens))
        traced = jax.jit(function, donate_argnums=donated, compiler_options=options).trace(*arguments)
        return traced.lower(lowering_platforms=(platform,)) if platform else traced.lower()

    def arguments(self, program: Program) -> tuple[Any, ...]:
        """Shapes of what a program is called with."""
        return tuple(getattr(self, f"_{program.kind}")(program)[1])

    def pool(self) -> KvPool:
        """The pool's shapes and where they lie."""
        c = self.layout.wide
        page = self.network.attention.page
        size = (c.num_layers, self.pages, page, c.num_kv_heads, c.head_dim)
        pages = jax.ShapeDtypeStruct(size, self.weights.embed.dtype, sharding=self.layout.sharding(POOL))
        return _both(pages)

    def _shape(self, program: Program) -> StepShape:
        return next(shape for shape in self.ladder.shapes if shape.tokens == program.tokens)

    def _step(self, program: Program) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
        shape, split = self._shape(program), self.network.config.head_split

        def run(weights: Weights, numbers: Any, pool: KvPool) -> tuple[Any, Any, KvPool]:
            with jax.named_scope("unpack"):
                step, pair_at, labels = unpack(numbers, shape)
            hidden, pool = decoder.hidden_states(self.network, shape, weights, step, pool)
            return hidden, self._to_host(decoder.pair_logits(weights, hidden, pair_at, labels, split)), pool

        specs = (self.layout.weight_specs(), P(), _both(POOL))
        function = self._on_every_device(run, specs, (P(), P(), _both(POOL)))
        return function, (self.weights, self._ints(sum(sizes(shape))), self.pool()), (2,)

    def _vocabulary(self, program: Program) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
        """Not a branch of the step: on a GPU the host would have to wait for the device to know which way to go."""
        shape = self._shape(program)

        def run(weights: Weights, hidden: Any, count: Any) -> Any:
            return self._to_host(decoder.over_vocabulary(self.network, weights, hidden[: program.size], count[0]))

        function = self._on_every_device(run, (self.layout.weight_specs(), P(), P()), P())
        return function, (self.weights, self._hidden(shape), self._ints(1)), ()

    def _labels(self, program: Program) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
        shape, split = self._shape(program), self.network.config.head_split

        def run(weights: Weights, hidden: Any, pairs: Any) -> Any:
            return self._to_host(decoder.pair_logits(weights, hidden, pairs[0], pairs[1], split))

        function = self._on_every_device(run, (self.layout.weight_specs(), P(), P()), P())
        return function, (self.weights, self._hidden(shape), self._ints(2, shape.pairs)), ()

    def _copy(self, program: Program) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
        def run(pool: KvPool, pages: Any) -> KvPool:
            """One after another; page 0 onto itself where there are fewer."""

            def one(n: Any, kept: Any) -> Any:
                page = jax.lax.dynamic_slice_in_dim(kept, pages[0, n], 1, axis=1)
                return jax.lax.dynamic_update_slice_in_dim(kept, page, pages[1, n], axis=1)

            with jax.named_scope("page_copy"):
                return jax.tree.map(lambda kept: jax.lax.fori_loop(0, COPIES, lambda n, k: one(n, k), kept), pool)

        function = self._on_every_device(run, (_both(POOL), P()), _both(POOL))
        return function, (self.pool(), self._ints(2, COPIES)), (0,)

    def _on_every_device(self, function: Callable[..., Any], arguments: Any, results: Any) -> Callable[..., Any]:
        mesh = self.layout.mesh
        if mesh is None or self.layout.devices == 1:
            return function
        # Not checked: Pallas kernels do not say over which axes their results vary.
        return jax.shard_map(function, mesh=mesh, in_specs=arguments, out_specs=results, check_vma=False)

    def _to_host(self, read: jax.Array) -> jax.Array:
        return jax.device_put(read, jax.memory.Space.Host) if self.writes_to_host else read

    def _ints(self, *size: int) -> Any:
        return jax.ShapeDtypeStruct(size, jnp.int32, sharding=self.layout.sharding(P()))

    def _hidden(self, shape: StepShape) -> Any:
        size = (shape.readouts, self.layout.wide.hidden_size)
        return jax.ShapeDtypeStruct(size, self.weights.embed.dtype, sharding=self.layout.sharding(P()))


def _both(value: Any) -> KvPool:
    """The same of keys and values: shapes, or how they are sharded."""
    return KvPool(value, value)
