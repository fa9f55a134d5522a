"""Attention of a program's tasks: what each of the two consumer warpgroups does, 64 rows of a softmax.

A tile's scores are weighed while the values of the tile before are multiplied, across the ends of tasks too: the next
task's queries are there, and its first tile is scored, when a task ends. So the first tile of a task must be a masked
one, and every task has one (`attention_schedule`). In masked tiles the rule, `mask.sees`, is asked.
"""

# mypy: disable-error-code="no-untyped-def"

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array

from onepass.attention.mask import Places, sees
from onepass.kernels.hopper.attention_schedule import KEYS
from onepass.kernels.hopper.attention_tasks import QUERIES, REGISTERS, ROWS, STAGES, TaskLoop

# The score of a key not seen. A power of two: multiplied by the scale it is not rounded, so that in a row which sees
# none, score - maximum is 0 and not the rounding of a huge number.
UNSEEN = -(2.0**100)


class Consumer(TaskLoop):
    def run(self) -> None:
        plgpu.set_max_registers(REGISTERS, action="increase")
        pl.when(self.tasks > 0)(self.compute_tasks)

    def queries(self, number):
        return self.shared.q_smem.at[self.warpgroup * QUERIES + number % QUERIES]

    def q_full(self, number):
        return self.shared.q_full.at[self.warpgroup * QUERIES + number % QUERIES]

    def ask(self, number) -> None:
        plgpu.copy_gmem_to_smem(self.arrays.q.at[self.place(number)], self.queries(number), self.q_full(number))

    def query_places(self, number) -> Places:
        """The places of a task's tokens."""
        tokens, _ = self.place(number)
        arrays = self.arrays

        def load(ref):
            return plgpu.load(ref.at[tokens], layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)

        return Places(*(load(ref) for ref in (arrays.segment, arrays.parent, arrays.context, arrays.position)))

    def compute_tasks(self) -> None:
        self.ask(0)
        plgpu.barrier_wait(self.q_full(0))
        plgpu.barrier_wait(self.shared.k_full.at[0])

        def product(scores_ref):
            plgpu.wgmma(scores_ref, self.queries(0), self.shared.k_smem.at[0].transpose((1, 0)))
            return scores_ref[...]

        scores = pl.run_scoped(product, plgpu.ACC((ROWS, KEYS), jnp.float32))
        plgpu.barrier_arrive(self.shared.k_empty.at[0])
        weights, sums, _ = self.weighed(scores, _nothing(), self.query_places(0), 0)
        first = jnp.int32(0), weights.astype(self.arrays.q.dtype), sums, *self.lengths(0)
        lax.fori_loop(0, self.tasks, self.compute_task, first)

    def compute_task(self, number, carry):
        """A task whose first tile is weighed already: `weights` and `sums`. Ends with the next task's."""
        count, weights, sums, masked, steps = carry
        more, following = number + 1 < self.tasks, jnp.minimum(number + 1, self.tasks - 1)
        tile = functools.partial(self.compute_tile, number, count)
        empty = plgpu.layout_cast(jnp.zeros((ROWS, self.head_dim), jnp.float32), plgpu.Layout.WGMMA)
        carry = lax.fori_loop(1, masked, functools.partial(tile, self.query_places(number)), (weights, sums, empty))
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # results of the task before, where queries come now
        pl.when(more)(lambda: self.ask(following))
        lengths, query_places = self.lengths(following), self.query_places(following)
        carry = lax.fori_loop(masked, steps, functools.partial(tile, None), carry)
        weights, next_sums, out = tile(query_places, steps, carry, more)
        staged = self.queries(number) if self.shared.out_smem is None else self.shared.out_smem.at[self.warpgroup]
        total = carry[1][1]
        staged[...] = (out * _across(1 / total, self.head_dim)).astype(self.arrays.out.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(staged, self.arrays.out.at[self.place(number)])
        pl.when(~more)(lambda: plgpu.wait_smem_to_gmem(0))
        return count + steps, weights, next_sums, *lengths

    def compute_tile(self, number, count, query_places: Places | None, step, carry, more=None):
        """The values of the tile before, and the scores of a step's tile: the next task's first, where `more` says
        whether there is one. Scores are weighed while values are multiplied."""
        shared, (weights, sums, out) = self.shared, carry
        before, slot = (count + step - 1) % STAGES, (count + step) % STAGES
        queries = self.queries(number if more is None else number + 1)
        keys, values = shared.k_smem.at[slot].transpose((1, 0)), shared.v_smem.at[before]

        def keys_full():
            if more is not None:
                pl.when(more)(lambda: plgpu.barrier_wait(self.q_full(number + 1)))
            _if(more, lambda: plgpu.barrier_wait(shared.k_full.at[slot]))

        def weigh(scores):
            _if(more, lambda: plgpu.barrier_arrive(shared.k_empty.at[slot]))
            return self.weighed(scores, sums if more is None else _nothing(), query_places, slot, more)

        def scored(scores_ref):
            # At once: whatever came between, the compiler would set the accumulator to 0 before it, instruction by
            # instruction. So the results so far become one only now.
            plgpu.wgmma(scores_ref, queries, keys)
            return pl.run_scoped(functools.partial(valued, scores_ref), plgpu.ACC((ROWS, self.head_dim), jnp.float32))

        def valued(scores_ref, out_ref):
            out_ref[...] = out
            plgpu.barrier_wait(shared.v_full.at[before])
            plgpu.wgmma(out_ref, weights, values)
            # The barriers keep the compiler from moving work into places where it must wait for both products.
            scores = lax.optimization_barrier(plgpu.wgmma_accumulator_load(scores_ref, wait_n=1))
            new = lax.optimization_barrier(weigh(scores))
            return lax.optimization_barrier((new, plgpu.wgmma_accumulator_load(out_ref, wait_n=0)))

        def interpreted(scores_ref):
            """Pallas's interpreter knows no product whose first factor is in registers."""
            plgpu.wgmma(scores_ref, queries, keys)
            plgpu.barrier_wait(shared.v_full.at[before])
            return weigh(scores_ref[...]), out + jnp.dot(weights, values[...], preferred_element_type=jnp.float32)

        keys_full()
        body = interpreted if self.call.interpreted else scored
        new, out = pl.run_scoped(body, plgpu.ACC((ROWS, KEYS), jnp.float32))
        plgpu.barrier_arrive(shared.v_empty.at[before])
        weights, sums, shrink = new
        if more is None:
            out = out * _across(shrink, self.head_dim)
        # In 16 bits only now: as long as a product runs, what it is fed must not be written.
        return weights.astype(self.arrays.q.dtype), sums, out

    def weighed(self, scores, sums, query_places: Places | None, slot, more=None):
        """Weights of the scores, the highest score and the total with them, and by what results so far shrink."""
        scale = math.log2(math.e) * self.head_dim**-0.5
        top, total = sums
        if query_places is not None:
            _if(more, lambda: plgpu.barrier_wait(self.shared.places_full.at[slot]))
            scores = self.masked(scores, query_places, slot)
        higher = jnp.maximum(top, scores.max(axis=1) * scale)
        shrink = jnp.exp2(top - higher)
        weights = jnp.exp2(scores * scale - _across(higher, KEYS))
        return weights, (higher, total * shrink + weights.sum(axis=1)), shrink

    def masked(self, scores, query_places: Places, slot):
        def of_keys(which):
            ref = self.shared.places_smem.at[slot, which]
            loaded = plgpu.load(ref, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
            return lax.broadcast_in_dim(loaded, (ROWS, KEYS), [1])

        # Of a key the rule asks only these.
        keys = Places(of_keys(0), None, None, of_keys(1))  # type: ignore[arg-type]
        rows = jax.tree.map(lambda a: _across(a, KEYS), query_places)
        return jnp.where(sees(rows, keys), scores, UNSEEN)


def _if(more, then) -> None:
    """Always, where nothing is said."""
    then() if more is None else pl.when(more)(then)


def _nothing() -> tuple[Array, Array]:
    """The highest score and the total of no keys."""
    return _by_row(UNSEEN), _by_row(0.0)


def _by_row(value: float) -> Array:
    return plgpu.layout_cast(jnp.full((ROWS,), value, jnp.float32), plgpu.Layout.WGMMA.reduce(1))


def _across(a: Array, width: int) -> Array:
    return lax.broadcast_in_dim(a, (ROWS, width), [0])
