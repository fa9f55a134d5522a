"""Scoring attention for Hopper GPUs in one launch: prefix, context and band, for every row of a batch (Mosaic GPU).

A program on each multiprocessor takes pieces of work one after another: 64 tokens of a row and two heads of a KV head's
group (128 tokens and one head where a group is odd). One warpgroup copies tiles of keys and values to shared memory by
TMA; two compute, each its 64 rows of a softmax, and take turns: while one multiplies, the other exponentiates.

Which tiles a piece visits is `hopper_plan`; in masked ones the rule, `places.sees`, is asked. 16-bit, head sizes 64 and
128. Read-out rows of the last layer are few, and left to XLA (`cascade`).
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
from jaxtyping import Array, Float

from onepass.attention.base import Asking, Keys, Out, RowShape
from onepass.attention.cascade import Cascade
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
    plan_of,
)
from onepass.attention.places import Places, sees

ROWS = 64  # of queries that a warpgroup computes: what one wgmma instruction takes
STAGES = 2  # tiles of keys, and of values, in shared memory at once
WARPGROUPS = 2  # that compute
REGISTERS, COPYING_REGISTERS = 232, 40  # a thread: of those that compute, and of those that copy; 64K in all
# The score of a key not seen. A power of two: multiplied by the scale it is not rounded, so that in a row which sees
# none, score - maximum is 0 and not the rounding of a huge number.
UNSEEN = -(2.0**100)


@dataclass(frozen=True)
class Hopper:
    multiprocessors: int
    group: int  # query heads that share a KV head
    narrow: Any = None  # the dtype of results, if not the queries'
    interpret: Any = False
    name: str = "hopper"

    @property
    def block(self) -> int:
        """Tokens of a piece of work: its two warpgroups take two heads of a group, or two blocks of tokens."""
        return ROWS if self.group % 2 == 0 else WARPGROUPS * ROWS

    def prepare(self, places: Places, prefix: Places | None, shape: RowShape) -> Plan:
        return plan_of(places, prefix, shape, self.block)

    def full(
        self, asking: Asking, own: Keys, prefix: Keys | None, shape: RowShape, prepared: Plan | None = None
    ) -> Out:
        tokens, kv_heads, group, head_dim = asking.q.shape[1:]
        plan = prepared or self.prepare(own.places, None if prefix is None else prefix.places, shape)
        q, k, v = (_padded(a, self.block) for a in (asking.q, own.k, own.v))
        call = _Call(self.block, self.multiprocessors, group, prefix is not None, plan, bool(self.interpret))
        tiles, narrow = (STAGES, KEYS, head_dim), jnp.dtype(self.narrow or q.dtype)
        # Results leave through the queries' memory, if they are of one kind.
        staged = {} if narrow == q.dtype else {"out_smem": swizzled((WARPGROUPS, ROWS, head_dim), narrow)}
        out = plgpu.kernel(
            call.run,
            out_type=jax.ShapeDtypeStruct((*q.shape[:2], kv_heads * group, head_dim), narrow),
            scratch_types={
                "q_smem": swizzled((WARPGROUPS, ROWS, head_dim), q.dtype),
                "k_smem": swizzled(tiles, q.dtype),
                "v_smem": swizzled(tiles, q.dtype),
                "places_smem": plgpu.SMEM((STAGES, 2, KEYS), jnp.int32),
                "q_here": plgpu.Barrier(num_barriers=WARPGROUPS),
                "k_here": plgpu.Barrier(num_barriers=STAGES),
                "v_here": plgpu.Barrier(num_barriers=STAGES),
                "places_here": plgpu.Barrier(num_arrivals=2, num_barriers=STAGES),
                "k_done": plgpu.Barrier(num_arrivals=WARPGROUPS, num_barriers=STAGES),
                "v_done": plgpu.Barrier(num_arrivals=WARPGROUPS, num_barriers=STAGES),
                "turn": plgpu.Barrier(num_arrivals=WARPGROUPS),
                **staged,
            },
            grid=(self.multiprocessors,),
            grid_names=("program",),
            num_threads=WARPGROUPS + 1,
            thread_name="warpgroup",
            compiler_params=plgpu.CompilerParams(approx_math=True),
            interpret=self.interpret or None,
            kernel_name="scoring_attention",
        )(
            plan.table.reshape(-1),
            *(a.reshape(-1) for a in (plan.asking.segment, plan.asking.parent, plan.asking.position)),
            *(a.reshape(-1) for a in (plan.keys.segment, plan.keys.position)),
            *(q.reshape(*q.shape[:2], -1, head_dim), k, v),
            *((prefix.k, prefix.v) if prefix is not None else (k, v)),
        )
        return out[:, :tokens].reshape(asking.q.shape)

    def readouts(self, asking: Asking, own: Keys, prefix: Keys | None, shape: RowShape) -> Out:
        return Cascade().readouts(asking, own, prefix, shape)


@dataclass(frozen=True)
class _Call:
    """The kernel, with all that is known before it runs."""

    block: int
    programs: int
    group: int
    has_prefix: bool
    plan: Plan
    interpreted: bool

    def run(self, *refs: Any, **shared: Any) -> None:
        work = _Work(self, _Arrays(*refs), _Shared(**shared))
        warpgroup = lax.axis_index("warpgroup")
        pl.when(warpgroup == WARPGROUPS)(work.copy)
        pl.when(warpgroup < WARPGROUPS)(work.compute)


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
    turn: Any
    out_smem: Any = None


class _Work:
    """The pieces of one program, as its warpgroups see them."""

    def __init__(self, call: _Call, arrays: _Arrays, shared: _Shared) -> None:
        self.call, self.arrays, self.shared = call, arrays, shared
        self.rows, self.tokens, heads, self.head_dim = arrays.q.shape
        self.together = ROWS * WARPGROUPS // call.block  # heads of a piece
        self.blocks, self.shares = self.tokens // call.block, heads // self.together
        self.all_keys = arrays.key_segment.shape[0] // self.rows
        program = lax.axis_index("program")
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
        warpgroup = lax.axis_index("warpgroup")
        pl.when(warpgroup == 1)(self.take_turn)
        lax.fori_loop(0, self.pieces, self.compute_piece, jnp.int32(0))
        pl.when(warpgroup == 0)(self.take_turn)

    def take_turn(self) -> None:
        plgpu.barrier_arrive(self.shared.turn)
        plgpu.barrier_wait(self.shared.turn)

    def compute_piece(self, number, count):
        row, block, head, line = self.piece(number)
        warpgroup = lax.axis_index("warpgroup")
        queries, q_here = self.shared.q_smem.at[warpgroup], self.shared.q_here.at[warpgroup]
        start = block * self.call.block + (warpgroup * ROWS if self.together == 1 else 0)
        here = (row, pl.ds(pl.multiple_of(start, ROWS), ROWS), head + (0 if self.together == 1 else warpgroup))
        plgpu.copy_gmem_to_smem(self.arrays.q.at[here], queries, q_here)

        def asking(ref):
            some = pl.ds(row * self.tokens + start, ROWS)
            return plgpu.load(ref.at[some], layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)

        asked = Places(*(asking(ref) for ref in (self.arrays.segment, self.arrays.parent, self.arrays.position)))
        plgpu.barrier_wait(q_here)
        masked, steps = sum(line[PREFIX_PARTS:ITEMS_FROM]), sum(line[:ITEMS_FROM])
        empty = plgpu.layout_cast(jnp.zeros((ROWS, self.head_dim), jnp.float32), plgpu.Layout.WGMMA)
        carry = empty, _by_row(UNSEEN), _by_row(0.0)
        tile = functools.partial(self.compute_tile, queries, count)
        carry = lax.fori_loop(0, masked, functools.partial(tile, asked), carry)
        out, _, total = lax.fori_loop(masked, steps, functools.partial(tile, None), carry)
        staged = queries if self.shared.out_smem is None else self.shared.out_smem.at[warpgroup]
        staged[...] = (out * _across(1 / total, self.head_dim)).astype(self.arrays.out.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(staged, self.arrays.out.at[here])
        plgpu.wait_smem_to_gmem(0)
        return count + steps

    def compute_tile(self, queries, count, asked: Places | None, step, carry):
        """One tile for one warpgroup; `asked` are its tokens' places where the tile is masked."""
        shared, scale = self.shared, math.log2(math.e) * self.head_dim**-0.5
        out, top, total = carry
        slot = (count + step) % STAGES
        plgpu.barrier_wait(shared.k_here.at[slot])

        def products(scores_ref):
            plgpu.wgmma(scores_ref, queries, shared.k_smem.at[slot].transpose((1, 0)))
            self.take_turn()
            return scores_ref[...]

        scores = pl.run_scoped(products, plgpu.ACC((ROWS, KEYS), jnp.float32))
        plgpu.barrier_arrive(shared.k_done.at[slot])
        if asked is not None:
            scores = self.masked(scores, asked, slot)
        higher = jnp.maximum(top, scores.max(axis=1) * scale)
        shrink = jnp.exp2(top - higher)
        weights = jnp.exp2(scores * scale - _across(higher, KEYS))
        out, total = out * _across(shrink, self.head_dim), total * shrink + weights.sum(axis=1)
        narrow = weights.astype(self.arrays.q.dtype)
        # Done with these before the turn: the compiler must not move them after it.
        out, total, higher, narrow = lax.optimization_barrier((out, total, higher, narrow))
        plgpu.barrier_arrive(shared.turn)
        plgpu.barrier_wait(shared.v_here.at[slot])
        plgpu.barrier_wait(shared.turn)
        out = _plus_product(out, narrow, shared.v_smem.at[slot], self.call.interpreted)
        plgpu.barrier_arrive(shared.v_done.at[slot])
        return out, higher, total

    def masked(self, scores, asked: Places, slot):
        plgpu.barrier_wait(self.shared.places_here.at[slot])

        def of_keys(which):
            ref = self.shared.places_smem.at[slot, which]
            loaded = plgpu.load(ref, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
            return lax.broadcast_in_dim(loaded, (ROWS, KEYS), [1])

        keys = Places(of_keys(0), None, of_keys(1))  # type: ignore[arg-type]  # the rule asks no key's parent
        rows = jax.tree.map(lambda a: _across(a, KEYS), asked)
        return jnp.where(sees(rows, keys), scores, UNSEEN)


def _by_row(value: float) -> Array:
    return plgpu.layout_cast(jnp.full((ROWS,), value, jnp.float32), plgpu.Layout.WGMMA.reduce(1))


def _across(a: Array, width: int) -> Array:
    return lax.broadcast_in_dim(a, (ROWS, width), [0])


def _plus_product(out: Array, a: Array, b_ref: Any, interpreted: bool) -> Array:
    """out + a · b, accumulated in place. Pallas's interpreter knows no product whose first factor is in registers."""
    if interpreted:
        return out + jnp.dot(a, b_ref[...], preferred_element_type=jnp.float32)

    def add(out_ref):
        plgpu.wgmma(out_ref, a, b_ref)

    summed: Array = pl.run_state(add)(plgpu.ACC.init(out))
    return summed


def swizzled(shape: tuple[int, ...], dtype: Any, part: int | None = None) -> Any:
    """Shared memory as products read it, in parts of so many columns, which can be written each by itself."""
    width = jnp.dtype(dtype).itemsize
    part = part or min(128 // width, shape[-1])
    transforms = (plgpu.TilingTransform((8, part)), plgpu.SwizzleTransform(width * part))  # type: ignore[abstract]
    return plgpu.SMEM(shape, dtype, transforms=transforms)


def _padded(a: Float[Array, "rows tokens *rest"], multiple: int) -> Array:
    spare = -a.shape[1] % multiple
    return jnp.pad(a, [(0, 0), (0, spare)] + [(0, 0)] * (a.ndim - 2)) if spare else a
