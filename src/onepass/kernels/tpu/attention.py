"""Scoring attention over a flat step as one Pallas kernel for TPUs: pages of the pool, then the step's own keys.

Algorithm. A turn of the grid holds a block of asking tokens, all heads of the device. The keys that the block sees are
a list of tiles of 128: the entries [first, end) of the page table, then tiles of the step's own keys. Their number is
data. They come in chunks of up to 4 tiles, all heads at once; while one chunk is computed the next one is copied, the
next block's first one included:

    for block of asking tokens:                                                      512, 256 or 128 tokens
      for chunk of tiles:                                                            4 tiles, 512 keys
        heads apart: [tokens, kv_heads, head_dim] → [kv_heads, tokens, head_dim]
        all of it in [first, whole):  online(q·kᵀ, v)                                the block × 512 keys, a head each
        else for part of the block, for one or two tiles in the part's own ranges:   128 tokens × 128 or 256 keys,
                                      online(where(sees(asking, key), q·kᵀ, -∞), v)  a group of heads each
      write out / sum

Blocks of padding alone copy no queries, visit nothing and give 0. What is not there (a page's unwritten keys, padding's
values) may be anything: its scores are masked and its values are taken as 0.

Memory traffic a layer: q and the result once; a context's pages once for each block of 512 tokens that sees them, own
keys about once. Scalar memory: 20 bytes a part of 128 tokens, 16 bytes an entry of the page table; of the 1 MiB of a
v5e or v6e, 4,096 entries take 64 KiB (`MOST_ENTRIES`). Copies ahead cross from block to block, so the blocks of a
device are one sequence; a chip that shows two cores as one device (v4, v5p) computes with one of them.

Arithmetic: 4 · head_dim · heads for each pair in a visited tile. On a v6e at most half of the matrix units' peak can be
had, since a head of 128 fills half of their 256 rows or columns.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from onepass.attention.base import Heads, KeyValues, KvPool, Queries, Step, StepShape
from onepass.attention.block_table import BlockTable, block_table
from onepass.attention.mask import PADDING, sees
from onepass.kernels.tpu.pages import Order, Runs, ordered, runs, write_pages
from onepass.kernels.tpu.softmax import HeadShape, Keys, Softmax
from onepass.kernels.tpu.walk import TILE, Copies, Plan, Rule, Scalars, Walk, cover

VMEM_BYTES = 48 << 20  # what the kernel may take on the chip: v5e and v6e have 128 MiB, v5p and v7x 64 MiB
MOST_ENTRIES = 16384  # of the page table: 256 KiB of scalar memory
BLOCKS = (512, 256, TILE)
Prepared = tuple[dict[int, BlockTable], Runs]  # ranges by size of blocks, and what is written
MOST_ROWS = 8192  # of a block, tokens times heads: what fits VMEM_BYTES


@dataclass(frozen=True)
class TpuAttention:
    """`interpret` takes what `pallas_call` takes, for machines without a TPU; `most_block` is for tests."""

    rule: Rule = sees
    interpret: Any = False
    most_block: int = BLOCKS[0]
    name: str = "pallas-tpu"
    page: int = TILE

    def prepare(self, queries: Queries, step: Step, shape: StepShape) -> "Prepared":
        """The ranges of blocks of every size; those that `attend` does not take are never computed."""
        padded = _padded(queries)
        sizes = [size for size in BLOCKS if padded.index.shape[0] % size == 0]
        tables = {size: block_table(padded, size, shape.page) for size in sizes}
        return tables, runs(step.slots, shape.page, shape.entries)

    def attend(
        self, q: Heads, keys: KeyValues, queries: Queries, step: Step, shape: StepShape, prepared: "Prepared"
    ) -> Heads:
        assert shape.page == TILE, f"pages of {TILE} tokens; got {shape.page}"
        assert shape.tokens % TILE == 0, f"a step of whole tiles of {TILE} tokens; got {shape.tokens}"
        assert shape.entries <= MOST_ENTRIES, f"at most {MOST_ENTRIES} entries; got {shape.entries}"
        heads = HeadShape(*q.shape[1:])
        most = max(TILE, min(self.most_block, MOST_ROWS // heads.heads))
        tables, _ = prepared
        block = max(size for size in tables if size <= most)
        call = _Call(Plan(heads, block, self.rule), self.interpret)
        num_queries = q.shape[0]
        rows = _pad_to(q.reshape(num_queries, -1), tables[TILE].first.shape[0] * TILE)
        out = call.run(rows, _padded(queries), keys, step, tables[block], tables[TILE])
        return out[:num_queries].reshape(q.shape)

    def write(
        self, pool: KvPool, layer: Array, k: Array, v: Array, step: Step, prepared: "Prepared | None" = None
    ) -> KvPool:
        entries = step.pages.page.shape[0]
        written = runs(step.slots, pool.k.shape[2], entries) if prepared is None else prepared[1]
        return write_pages(pool, layer, k, v, written, self.interpret)


def _pad_to(a: Array, size: int, value: int = 0) -> Array:
    spare = size - a.shape[0]
    return jnp.pad(a, [(0, spare)] + [(0, 0)] * (a.ndim - 1), constant_values=value) if spare else a


def _padded(queries: Queries) -> Queries:
    """A whole number of tiles."""
    size = -(-queries.index.shape[0] // TILE) * TILE
    places = jax.tree.map(lambda a: _pad_to(a, size, PADDING), queries.places)
    entry, seen, index = (_pad_to(a, size) for a in (queries.first_entry, queries.context_keys, queries.index))
    return Queries(places, index, entry, seen, _pad_to(queries.first_own, size, 1), queries.count)


@dataclass(frozen=True)
class _Call:
    plan: Plan
    interpret: Any

    def run(
        self, q: Array, asking: Queries, keys: KeyValues, step: Step, blocks: BlockTable, parts: BlockTable
    ) -> Array:
        heads, order, block = self.plan.heads, self.plan.order, self.plan.block
        numbers = jnp.stack([keys.layer, asking.count, step.queries.count]).astype(jnp.int32)
        table = step.pages
        scalars = Scalars(numbers, blocks, parts, table.page, table.context, table.start, table.length)
        flat, structure = jax.tree.flatten(scalars)
        kernel = _Kernel(self.plan, structure)
        own = step.own_keys
        dtype = keys.pool.k.dtype

        def last_real(i: Array, *refs: Any) -> Array:
            return jnp.minimum(i, jnp.maximum(cover(refs[0][1], block) - 1, 0))

        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        of_tile = (pl.BlockSpec((keys.k.shape[0] // TILE, TILE), lambda i, *_: (0, 0)),) * 2
        width = heads.heads * heads.head_dim
        return pl.pallas_call(
            kernel,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=len(flat),
                grid=(q.shape[0] // block,),
                in_specs=[
                    pl.BlockSpec((block, width), lambda i, *refs: (last_real(i, *refs), 0)),
                    pl.BlockSpec((4, block), lambda i, *refs: (0, last_real(i, *refs))),
                    *of_tile,
                    *[anywhere] * 4,
                ],
                out_specs=pl.BlockSpec((block, width), lambda i, *_: (i, 0)),
                scratch_shapes=kernel.scratch(dtype),
            ),
            out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
            compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",), vmem_limit_bytes=VMEM_BYTES),
            cost_estimate=self._cost(q, keys),
            interpret=self.interpret,
            name="scoring_attention",
        )(
            *flat,
            q,
            jnp.stack(jax.tree.leaves(asking.places)),
            *(a.reshape(-1, TILE) for a in (own.segment, own.position)),
            *(ordered(a.astype(dtype), order) for a in (keys.k, keys.v)),
            *(ordered(a, order) for a in (keys.pool.k, keys.pool.v)),
        )

    def _cost(self, q: Array, keys: KeyValues) -> pl.CostEstimate:
        """For the compiler's accounts: what is seen is data, so a full step of one causal sequence stands for it."""
        pairs = q.shape[0] * keys.k.shape[0] // 2 * self.plan.heads.heads
        moved = 2 * q.size + 4 * keys.k.size
        return pl.CostEstimate(
            flops=4 * self.plan.heads.head_dim * pairs, transcendentals=pairs, bytes_accessed=moved * q.dtype.itemsize
        )


@dataclass(frozen=True)
class _Kernel:
    plan: Plan
    structure: Any

    def scratch(self, dtype: Any) -> list[Any]:
        plan, heads, chunk = self.plan, self.plan.heads, self.plan.chunk
        sizes = [heads.kv_heads, heads.head_dim]
        tile = [*sizes[: plan.order.value], TILE, *sizes[plan.order.value :]]
        apart = [heads.kv_heads, heads.head_dim]
        apart.insert(2 if plan.order is Order.COLUMNS else 1, chunk * TILE)
        return [
            *Softmax.scratch(heads, plan.block, dtype),
            pltpu.VMEM((4, plan.block, TILE), jnp.int32),
            *[pltpu.VMEM((2, chunk, *tile), dtype)] * 2,
            *[pltpu.VMEM(tuple(apart), dtype)] * 2,
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SMEM((1,), jnp.int32),
        ]

    def __call__(self, *refs: Any) -> None:
        scalars: Scalars = jax.tree.unflatten(self.structure, refs[: self.structure.num_leaves])
        q, asking, segment, position, own_k, own_v, pool_k, pool_v, out, *scratch = refs[self.structure.num_leaves :]
        softmax = Softmax(self.plan.heads, *scratch[:4])
        places, k_tiles, v_tiles, k_heads, v_heads, arrived, turns = scratch[4:]
        copies = Copies(self.plan, scalars, (own_k, own_v), (pool_k, pool_v), (k_tiles, v_tiles), arrived)
        keys = Keys(k_heads, v_heads, self.plan.order is Order.COLUMNS, slice(None))
        walk = Walk(self.plan, scalars, softmax, copies, keys, places, (segment, position))
        block, blocks, count = pl.program_id(0), pl.num_programs(0), scalars.numbers[1]

        @pl.when(block == 0)
        def _() -> None:
            turns[0] = 0
            copies.start(block, 0, 0)

        @pl.when(block * self.plan.block < count)
        def _() -> None:
            softmax.begin(q)
            for kind in range(4):
                for at in range(0, self.plan.block, TILE):
                    part = pl.ds(at, TILE)
                    places[kind, part] = jnp.broadcast_to(asking[pl.ds(kind, 1), part], (TILE, TILE)).T
            turns[0] = walk.run(block, blocks, turns[0])
            row = block * self.plan.block + jax.lax.broadcasted_iota(jnp.int32, (self.plan.block, 1), 0)
            softmax.finish(out, row < count)

        @pl.when(block * self.plan.block >= count)
        def _() -> None:
            out[...] = jnp.zeros_like(out)
