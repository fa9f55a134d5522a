"""What a multiprocessor does for `hopper`: copies tiles of keys and values, and computes the attention of its pieces.

A program takes pieces of work one after another: 64 tokens of a row and two heads of a KV head's group (128 tokens and
one head where a group is odd). One warpgroup copies tiles to shared memory by TMA; two compute, each its 64 rows of a
softmax. A tile's scores are weighed while the values of the tile before are multiplied, across the ends of pieces too:
the next piece's queries are there, and its first tile is scored, when a piece ends. So the first tile of a piece must
be a masked one, and every piece has one (`hopper_plan`). In masked tiles the rule, `places.sees`, is asked.
"""

# mypy: disable-error-code="no-untyped-def"

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array

from onepass.attention.hopper_plan import (
    COLUMNS,
    CONTEXT_FULL,
    CONTEXT_PARTS,
    FINE,
    ITEM_TILES,
    ITEMS_FROM,
    KEYS,
    PREFIX_FULL,
    PREFIX_PARTS,
    Plan,
)
from onepass.attention.places import Places, sees

ROWS = 64  # of queries that a warpgroup computes: what one wgmma instruction takes
STAGES = 2  # tiles of keys, and of values, in shared memory at once
QUERIES = 2  # pieces whose queries are there at once, for each warpgroup
WARPGROUPS = 2  # that compute
REGISTERS, COPYING_REGISTERS = 232, 40  # a thread: of those that compute, and of those that copy; 64K in all
# The score of a key not seen. A power of two: multiplied by the scale it is not rounded, so that in a row which sees
# none, score - maximum is 0 and not the rounding of a huge number.
UNSEEN = -(2.0**100)


@dataclass(frozen=True)
class Call:
    """The kernel, with all that is known before it runs."""

    block: int
    programs: int
    group: int
    has_prefix: bool
    plan: Plan
    interpreted: bool

    def run(self, *refs: Any, **shared: Any) -> None:
        work = _Work(self, _Arrays(*refs), _Shared(**shared))
        pl.when(work.warpgroup == WARPGROUPS)(work.copy)
        pl.when(work.warpgroup < WARPGROUPS)(work.compute)


@dataclass(frozen=True)
class _Arrays:
    table: Any
    segment: Any
    parent: Any
    position: Any
    key_segment: Any
    key_position: Any
    q: Any
    k: Any
    v: Any
    prefix_k: Any
    prefix_v: Any
    out: Any


@dataclass(frozen=True)
class _Shared:
    q_smem: Any
    k_smem: Any
    v_smem: Any
    places_smem: Any
    q_here: Any
    k_here: Any
    v_here: Any
    places_here: Any
    k_done: Any
    v_done: Any
    out_smem: Any = None


class _Work:
    """The pieces of one program, as its warpgroups see them."""

    def __init__(self, call: Call, arrays: _Arrays, shared: _Shared) -> None:
        self.call, self.arrays, self.shared = call, arrays, shared
        self.rows, self.tokens, heads, self.head_dim = arrays.q.shape
        self.together = ROWS * WARPGROUPS // call.block  # heads of a piece
        self.blocks, self.shares = self.tokens // call.block, heads // self.together
        self.all_keys = arrays.key_segment.shape[0] // self.rows
        self.warpgroup, program = lax.axis_index("warpgroup"), lax.axis_index("program")
        self.pieces = jnp.maximum(
            (self.rows * self.blocks * self.shares - program + call.programs - 1) // call.programs, 0
        )

    def piece(self, number):
        """Row, block of tokens, first head and the table's line of a piece; the last blocks of a row, its items, first:
        they take longest."""
        number = lax.axis_index("program") + number * self.call.programs
        rest, share = number // self.shares, number % self.shares
        row, block = rest // self.blocks, self.blocks - 1 - rest % self.blocks
        line = (row * self.blocks + block) * COLUMNS
        return row, block, share * self.together, [self.arrays.table[line + i] for i in range(ITEMS_FROM + 1)]

    def lengths(self, number):
        """Masked tiles of a piece, and all of them."""
        line = self.piece(number)[-1]
        return sum(line[PREFIX_PARTS:ITEMS_FROM]), sum(line[:ITEMS_FROM])

    def place(self, number):
        """Row, tokens and head of a warpgroup's part of a piece."""
        row, block, head, _ = self.piece(number)
        start = block * self.call.block
        if self.together == 1:
            return row, pl.ds(pl.multiple_of(start + self.warpgroup * ROWS, ROWS), ROWS), head
        return row, pl.ds(pl.multiple_of(start, ROWS), ROWS), head + self.warpgroup

    def queries(self, number):
        return self.shared.q_smem.at[self.warpgroup * QUERIES + number % QUERIES]

    def q_here(self, number):
        return self.shared.q_here.at[self.warpgroup * QUERIES + number % QUERIES]

    def ask(self, number) -> None:
        plgpu.copy_gmem_to_smem(self.arrays.q.at[self.place(number)], self.queries(number), self.q_here(number))

    def asked(self, number) -> Places:
        """The places of a piece's tokens."""
        row, tokens, _ = self.place(number)
        some = pl.ds(row * self.tokens + tokens.start, ROWS)

        def load(ref):
            return plgpu.load(ref.at[some], layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)

        return Places(*(load(ref) for ref in (self.arrays.segment, self.arrays.parent, self.arrays.position)))

    def tile(self, line, step):
        """Whether a step's keys are the prefix's, where they begin there, and where their places are."""
        part = step - line[PREFIX_PARTS]
        of_items = part - line[CONTEXT_PARTS]
        full = of_items - line[ITEM_TILES]
        from_prefix = (part < 0) | ((full >= 0) & (full < line[PREFIX_FULL]))
        is_items = (of_items >= 0) & (full < 0)
        in_prefix = jnp.where(part < 0, line[PREFIX_FULL], full) * KEYS
        in_context = jnp.where(full < 0, line[CONTEXT_FULL] + part, full - line[PREFIX_FULL]) * KEYS
        in_row = jnp.where(is_items, line[ITEMS_FROM] + of_items * KEYS, in_context)
        start = jnp.where(from_prefix, in_prefix, in_row)
        base = jnp.where(from_prefix, 0, jnp.where(is_items, self.call.plan.items_at, self.call.plan.context_at))
        return from_prefix, pl.multiple_of(start, FINE), base + start

    def copy(self) -> None:
        plgpu.set_max_registers(COPYING_REGISTERS, action="decrease")
        count = lax.fori_loop(0, self.pieces, self.copy_piece, jnp.int32(0))

        @pl.loop(jnp.maximum(count - STAGES, 0), count)
        def _until_all_are_used(number):
            plgpu.barrier_wait(self.shared.k_done.at[number % STAGES])
            plgpu.barrier_wait(self.shared.v_done.at[number % STAGES])

    def copy_piece(self, number, count):
        row, _, head, line = self.piece(number)
        copy = functools.partial(self.copy_tile, row, head // self.call.group, line)
        return lax.fori_loop(0, sum(line[:ITEMS_FROM]), copy, count)

    def copy_tile(self, row, kv_head, line, step, count):
        arrays, shared = self.arrays, self.shared
        slot = count % STAGES
        from_prefix, start, places = self.tile(line, step)
        at = (row, pl.ds(start, KEYS), kv_head)

        def into(smem, here, done, own, kept):
            pl.when(count >= STAGES)(lambda: plgpu.barrier_wait(done.at[slot]))

            def copy(ref):
                plgpu.copy_gmem_to_smem(ref.at[at], smem.at[slot], here.at[slot])

            if not self.call.has_prefix:
                return copy(own)
            pl.when(from_prefix)(lambda: copy(kept))
            return pl.when(~from_prefix)(lambda: copy(own))

        into(shared.k_smem, shared.k_here, shared.k_done, arrays.k, arrays.prefix_k)
        into(shared.v_smem, shared.v_here, shared.v_done, arrays.v, arrays.prefix_v)

        @pl.when(step < sum(line[PREFIX_PARTS:ITEMS_FROM]))
        def _places():
            some = pl.ds(pl.multiple_of(row * self.all_keys + places, FINE), KEYS)
            for which, ref in enumerate((arrays.key_segment, arrays.key_position)):
                plgpu.copy_gmem_to_smem(ref.at[some], shared.places_smem.at[slot, which], shared.places_here.at[slot])

        return count + 1

    def compute(self) -> None:
        plgpu.set_max_registers(REGISTERS, action="increase")
        pl.when(self.pieces > 0)(self.compute_pieces)

    def compute_pieces(self) -> None:
        self.ask(0)
        plgpu.barrier_wait(self.q_here(0))
        plgpu.barrier_wait(self.shared.k_here.at[0])

        def product(scores_ref):
            plgpu.wgmma(scores_ref, self.queries(0), self.shared.k_smem.at[0].transpose((1, 0)))
            return scores_ref[...]

        scores = pl.run_scoped(product, plgpu.ACC((ROWS, KEYS), jnp.float32))
        plgpu.barrier_arrive(self.shared.k_done.at[0])
        weights, sums, _ = self.weighed(scores, _nothing(), self.asked(0), 0)
        first = jnp.int32(0), weights.astype(self.arrays.q.dtype), sums, *self.lengths(0)
        lax.fori_loop(0, self.pieces, self.compute_piece, first)

    def compute_piece(self, number, carry):
        """A piece whose first tile is weighed already: `weights` and `sums`. Ends with the next piece's."""
        count, weights, sums, masked, steps = carry
        more, following = number + 1 < self.pieces, jnp.minimum(number + 1, self.pieces - 1)
        tile = functools.partial(self.compute_tile, number, count)
        empty = plgpu.layout_cast(jnp.zeros((ROWS, self.head_dim), jnp.float32), plgpu.Layout.WGMMA)
        carry = lax.fori_loop(1, masked, functools.partial(tile, self.asked(number)), (weights, sums, empty))
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # results of the piece before, where queries come now
        pl.when(more)(lambda: self.ask(following))
        lengths, asked = self.lengths(following), self.asked(following)
        carry = lax.fori_loop(masked, steps, functools.partial(tile, None), carry)
        weights, next_sums, out = tile(asked, steps, carry, more)
        staged = self.queries(number) if self.shared.out_smem is None else self.shared.out_smem.at[self.warpgroup]
        total = carry[1][1]
        staged[...] = (out * _across(1 / total, self.head_dim)).astype(self.arrays.out.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(staged, self.arrays.out.at[self.place(number)])
        pl.when(~more)(lambda: plgpu.wait_smem_to_gmem(0))
        return count + steps, weights, next_sums, *lengths

    def compute_tile(self, number, count, asked: Places | None, step, carry, more=None):
        """The values of the tile before, and the scores of a step's tile: the next piece's first, where `more` says
        whether there is one. Scores are weighed while values are multiplied."""
        shared, (weights, sums, out) = self.shared, carry
        before, slot = (count + step - 1) % STAGES, (count + step) % STAGES
        queries = self.queries(number if more is None else number + 1)
        keys, values = shared.k_smem.at[slot].transpose((1, 0)), shared.v_smem.at[before]

        def keys_here():
            if more is not None:
                pl.when(more)(lambda: plgpu.barrier_wait(self.q_here(number + 1)))
            _if(more, lambda: plgpu.barrier_wait(shared.k_here.at[slot]))

        def weigh(scores):
            _if(more, lambda: plgpu.barrier_arrive(shared.k_done.at[slot]))
            return self.weighed(scores, sums if more is None else _nothing(), asked, slot, more)

        def products(out_ref, scores_ref):
            out_ref[...] = out
            keys_here()
            plgpu.wgmma(scores_ref, queries, keys)
            plgpu.barrier_wait(shared.v_here.at[before])
            plgpu.wgmma(out_ref, weights, values)
            # The barriers keep the compiler from moving work into places where it must wait for both products.
            scores = lax.optimization_barrier(plgpu.wgmma_accumulator_load(scores_ref, wait_n=1))
            new = lax.optimization_barrier(weigh(scores))
            return lax.optimization_barrier((new, plgpu.wgmma_accumulator_load(out_ref, wait_n=0)))

        def interpreted(scores_ref):
            """Pallas's interpreter knows no product whose first factor is in registers."""
            keys_here()
            plgpu.wgmma(scores_ref, queries, keys)
            plgpu.barrier_wait(shared.v_here.at[before])
            return weigh(scores_ref[...]), out + jnp.dot(weights, values[...], preferred_element_type=jnp.float32)

        accumulators = [plgpu.ACC((ROWS, width), jnp.float32) for width in (self.head_dim, KEYS)]
        if self.call.interpreted:
            new, out = pl.run_scoped(interpreted, accumulators[1])
        else:
            new, out = pl.run_scoped(products, *accumulators)
        plgpu.barrier_arrive(shared.v_done.at[before])
        weights, sums, shrink = new
        if more is None:
            out = out * _across(shrink, self.head_dim)
        # In 16 bits only now: as long as a product runs, what it is fed must not be written.
        return weights.astype(self.arrays.q.dtype), sums, out

    def weighed(self, scores, sums, asked: Places | None, slot, more=None):
        """Weights of the scores, the highest score and the total with them, and by what results so far shrink."""
        scale = math.log2(math.e) * self.head_dim**-0.5
        top, total = sums
        if asked is not None:
            _if(more, lambda: plgpu.barrier_wait(self.shared.places_here.at[slot]))
            scores = self.masked(scores, asked, slot)
        higher = jnp.maximum(top, scores.max(axis=1) * scale)
        shrink = jnp.exp2(top - higher)
        weights = jnp.exp2(scores * scale - _across(higher, KEYS))
        return weights, (higher, total * shrink + weights.sum(axis=1)), shrink

    def masked(self, scores, asked: Places, slot):
        def of_keys(which):
            ref = self.shared.places_smem.at[slot, which]
            loaded = plgpu.load(ref, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
            return lax.broadcast_in_dim(loaded, (ROWS, KEYS), [1])

        keys = Places(of_keys(0), None, of_keys(1))  # type: ignore[arg-type]  # the rule asks no key's parent
        rows = jax.tree.map(lambda a: _across(a, KEYS), asked)
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
