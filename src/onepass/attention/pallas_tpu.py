"""Scoring attention as one Pallas kernel for TPUs: prefix, context and band in one pass of online softmax.

Algorithm. A grid step holds a block of asking tokens of a few heads, and blocks of keys and values. Within it the
kernel walks the key tiles that the tables of `tiles` name: those that every asking token sees whole take no mask;
others take `places.visible`, called on the tiles' places; what nobody sees is passed over. Running maximum, sum and
output (float32) stay on the chip until the block's last step:

    grid (rows, heads, asking blocks, steps)     steps: key blocks of the prefix and of the row itself, from the tables
      for source in prefix, own:
        for asking tile in block:                                                                       (512 tokens)
          for wide tile of the context:  WHOLE   online(q·kᵀ, v)                                        (512 keys)
                                         PARTLY  online(where(visible(asking, key), q·kᵀ, -∞), v)
        for narrow asking tile in block:                                                                (128 tokens)
          for narrow tile of its window: PARTLY  online(where(visible(asking, key), q·kᵀ, -∞), v)       (128 keys)
      last step: write out / sum

Memory traffic a layer: q and the result once; K and V once where a row's keys fit one block (`key_block`), else once
for each asking block that sees them; places are 12 bytes a token and head step, tables some hundred bytes an asking
tile. Pallas's pipeline copies the next step's blocks while this one computes, and copies no block twice in a row.
q, K and V come as [heads · head_dim, tokens]: so XLA keeps them on a TPU, where rotary positions then split no lanes;
the result goes as [tokens, heads · head_dim], as the product after it reads it. So nothing is transposed in memory; the
kernel turns each block of queries once.

Arithmetic: 4 · head_dim · heads for each pair in a visited tile. On a v6e at most half of the matrix units' peak can be
had, since a head of 128 fills half of their 256 rows or columns.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from onepass.attention.base import Asking, Keys, Out, RowShape, precision
from onepass.attention.cascade import Cascade
from onepass.attention.places import PADDING, Places, visible
from onepass.attention.reference import MASKED, Rule
from onepass.attention.tiles import PARTLY, WHOLE, Reach, TileTable, Tiling, tile_table

LANES = 128
VMEM_BYTES = 48 << 20  # what the kernel may take on the chip: v5e and v6e have 128 MiB, v5p and v7x 64 MiB
HEADS_IN_FLIGHT = 4  # with fewer a step, the chip's units wait for each other


@dataclass(frozen=True)
class Heads:
    """How heads lie in the arrays: [kv_heads · group · head_dim, tokens] and [kv_heads · head_dim, tokens]."""

    kv_heads: int
    group: int
    head_dim: int

    @property
    def together(self) -> int:
        """KV heads a step: enough that the products of one head overlap the exponentials of another, and that a block
        of the result is whole lanes wide, unless all are needed for it."""
        fitting = (
            n
            for n in range(1, self.kv_heads)
            if self.kv_heads % n == 0
            and n * self.group >= HEADS_IN_FLIGHT
            and n * self.group * self.head_dim % LANES == 0
        )
        return next(fitting, self.kv_heads)

    @property
    def in_step(self) -> int:
        return self.together * self.group


@dataclass(frozen=True)
class PallasTpu:
    """`tiling` None means `choose_tiling`; `interpret` takes what `pallas_call` takes, for machines without a TPU."""

    rule: Rule = visible
    tiling: Tiling | None = None
    interpret: Any = False
    name: str = "pallas-tpu"
    from_stack: ClassVar[bool] = False

    def prepare(self, places: Places, prefix: Places | None, shape: RowShape) -> None:
        return None

    def full(self, asking: Asking, own: Keys, prefix: Keys | None, shape: RowShape, prepared: None = None) -> Out:
        tokens, heads = asking.q.shape[1], Heads(*asking.q.shape[2:])
        tiling = self.tiling or choose_tiling(shape, heads, asking.q.dtype.itemsize)
        reach = Reach(shape.context, shape.band if shape.items else 0)
        width = _up(max(tokens, reach.wide_tiles(tiling) * tiling.wide), tiling.asking)
        sources = [_Source.of(own, reach, width)]
        if prefix is not None:
            sources.insert(0, _Source.of(prefix, Reach(shape.prefix, 0), _up(shape.prefix, tiling.wide)))
        q = _pad(_heads_first(asking.q), width - tokens)
        call = _Call(heads, tiling, self.rule, self.interpret)
        out = call.run(q, _pad_places(asking.places, width - tokens), sources)
        return out[:, :tokens].reshape(asking.q.shape)

    def readouts(self, asking: Asking, own: Keys, prefix: Keys | None, shape: RowShape) -> Out:
        """Few tokens ask, scattered over the row: a tile of them would see nearly all item tiles; windows do not."""
        return Cascade().readouts(asking, own, prefix, shape)


# Tokens of an asking tile by heads a step, from the compiler's own schedules for a v6e. Cycles for 1000 pairs of a
# token and a key of one head (the matrix units alone need 1.95; jax's splash attention at its best 3.3):
#     4 heads: 128 tokens 3.9, 256 tokens 2.7, 512 tokens 2.5        8 heads: 128 tokens 3.2, 256 tokens 2.5
TUNED = {4: 512, 8: 256}


def choose_tiling(shape: RowShape, heads: Heads, itemsize: int) -> Tiling:
    """The asking tile from `TUNED`, or as many tokens as make about 2048 (token, head) pairs, if little of the row is
    padding then; narrow tiles wider where items are long; blocks of about 4096 pairs; as many keys as fit the chip."""
    most = TUNED.get(heads.in_step) or max(LANES, 2048 // heads.in_step)
    least = _up(shape.tokens, LANES)
    asking = next(
        size for size in (512, 256, LANES) if size == LANES or (size <= most and _up(least, size) <= 1.125 * least)
    )
    narrow = min(asking, LANES if shape.band <= 256 else 256 if shape.band <= 1024 else 512)
    context = max(shape.prefix, shape.context)
    wide = max(narrow, next((size for size in (LANES, 256) if context <= size), 512))
    asking_block = max(1, 4096 // heads.in_step // asking) * asking
    asking_block = max(asking, min(asking_block, 1024 // asking * asking, _up(shape.tokens, asking)))
    sizes = [_up(size, wide) for size in (shape.prefix, shape.tokens) if size]
    key_block = max(sizes)

    def too_much() -> bool:
        blocks = [min(key_block, size) for size in sizes]
        return _vmem(asking_block, blocks, asking * wide, heads, itemsize) > VMEM_BYTES

    while key_block > wide and too_much():
        key_block = _up(key_block // 2, wide)
    return Tiling(asking, wide, narrow, asking_block, key_block)


def _vmem(asking_block: int, key_blocks: list[int], scores: int, heads: Heads, itemsize: int) -> int:
    """Bytes on the chip: everything that the pipeline copies is there twice."""
    lanes = _up(heads.head_dim, LANES)
    copied = 2 * itemsize * heads.head_dim * (2 * sum(key_blocks) * heads.together + 2 * asking_block * heads.in_step)
    places = 2 * 4 * 8 * (sum(key_blocks) + asking_block)
    kept = asking_block * heads.in_step * (4 * (2 * LANES + lanes) + itemsize * lanes)
    return copied + places + kept + 4 * scores * 2 * heads.in_step


@dataclass(frozen=True)
class _Source:
    """An array of keys as the kernel is given it, padded to whole tiles."""

    k: Float[Array, "rows heads_dims keys"]
    v: Float[Array, "rows heads_dims keys"]
    places: Places
    reach: Reach

    @classmethod
    def of(cls, keys: Keys, reach: Reach, width: int) -> "_Source":
        spare = width - keys.k.shape[1]
        k, v = (_pad(_heads_first(a), spare) for a in (keys.k, keys.v))
        return cls(k, v, _pad_places(keys.places, spare), reach)

    @property
    def width(self) -> int:
        return self.k.shape[-1]


@dataclass(frozen=True)
class _Call:
    heads: Heads
    tiling: Tiling
    rule: Rule
    interpret: Any

    def run(self, q: Float[Array, "rows heads_dims tokens"], places: Places, sources: list[_Source]) -> Array:
        heads, tiling = self.heads, self.tiling
        rows, _, tokens = q.shape
        steps = max(s.reach.most_blocks(tiling, s.width) for s in sources)
        tables = [tile_table(places, s.places, s.reach, tiling, steps, self.rule) for s in sources]
        scalars, structure = jax.tree.flatten(tables)
        block = min(tiling.asking_block, tokens)
        grid = (rows, heads.kv_heads // heads.together, -(-tokens // block), steps)
        dims = heads.in_step * heads.head_dim
        asked = pl.BlockSpec((None, dims, block), lambda r, h, i, s, *_: (r, h, i))
        in_specs = [asked, pl.BlockSpec((None, 3, block), lambda r, h, i, s, *_: (r, 0, i))]
        arrays = [q, _stacked(places)]
        for number, source in enumerate(sources):
            in_specs += self._key_specs(source, functools.partial(_block_at, structure, number, grid))
            arrays += [source.k, source.v, _stacked(source.places)]
        kernel = _Kernel(heads, tiling, self.rule, tokens, tuple(s.reach for s in sources), structure)
        stats = pltpu.VMEM((heads.in_step, block, min(LANES, tiling.narrow)), jnp.float32)
        return pl.pallas_call(
            kernel,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=len(scalars),
                grid=grid,
                in_specs=in_specs,
                out_specs=pl.BlockSpec((None, block, dims), lambda r, h, i, s, *_: (r, i, h)),
                scratch_shapes=[
                    pltpu.VMEM((heads.in_step, block, heads.head_dim), q.dtype),
                    stats,
                    stats,
                    pltpu.VMEM((heads.in_step, block, heads.head_dim), jnp.float32),
                ],
            ),
            out_shape=jax.ShapeDtypeStruct((rows, tokens, q.shape[1]), q.dtype),
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
            ),
            cost_estimate=self._cost(q, sources),
            interpret=self.interpret,
            name="scoring_attention",
        )(*(_scalars(table) for table in scalars), *arrays)

    def _key_specs(self, source: _Source, block_at: Callable[..., Any]) -> list[pl.BlockSpec]:
        size = min(self.tiling.key_block, source.width)
        of_keys = pl.BlockSpec(
            (None, self.heads.together * self.heads.head_dim, size),
            lambda r, h, i, s, *refs: (r, h, block_at(r, i, s, refs)),
        )
        return [
            of_keys,
            of_keys,
            pl.BlockSpec((None, 3, size), lambda r, h, i, s, *refs: (r, 0, block_at(r, i, s, refs))),
        ]

    def _cost(self, q: Array, sources: list[_Source]) -> pl.CostEstimate:
        """For the compiler's accounts, of a row without padding: tokens see all of a prefix, half of the context they
        belong to, the whole context they follow, and their window."""
        rows, _, tokens = q.shape
        pairs = 0
        for source in sources:
            context = source.reach.context
            first = context if source.reach.band or source.width == tokens else 0
            pairs += context * tokens - first * context // 2
            pairs += (tokens - first) * source.reach.window(self.tiling) * self.tiling.narrow
        pairs *= rows * self.heads.kv_heads * self.heads.group
        moved = 2 * q.size + sum(s.k.size + s.v.size for s in sources)
        return pl.CostEstimate(
            flops=4 * self.heads.head_dim * pairs, transcendentals=pairs, bytes_accessed=moved * q.dtype.itemsize
        )


def _block_at(structure: Any, number: int, grid: tuple[int, ...], row: Any, block: Any, step: Any, refs: Any) -> Any:
    """The key block of source `number` at a step of the grid."""
    table: TileTable = jax.tree.unflatten(structure, refs)[number]
    return table.blocks[(row * grid[2] + block) * grid[3] + step]


@dataclass(frozen=True)
class _Kernel:
    heads: Heads
    tiling: Tiling
    rule: Rule
    tokens: int
    reaches: tuple[Reach, ...]
    structure: Any

    def __call__(self, *refs: Any) -> None:
        tables: list[TileTable] = jax.tree.unflatten(self.structure, refs[: self.structure.num_leaves])
        q_columns, asking, *key_refs, out, q, top, total, weighted = refs[self.structure.num_leaves :]
        softmax = _Softmax(self.heads, q, top, total, weighted)
        row, block, step, steps = pl.program_id(0), pl.program_id(2), pl.program_id(3), pl.num_programs(3)
        at = (row * pl.num_programs(2) + block) * steps + step
        pl.when(step == 0)(functools.partial(softmax.begin, q_columns))
        for number, (table, reach) in enumerate(zip(tables, self.reaches, strict=True)):
            k, v, places = key_refs[3 * number : 3 * number + 3]
            walk = _Walk(softmax, self.rule, asking, k, v, places, table.blocks[at])
            # Steps that are too many repeat the block before.
            new = (step == 0) | (walk.block != table.blocks[jnp.maximum(at - 1, 0)])
            pl.when(new)(functools.partial(self._visit, walk, table, reach, row, block))
        pl.when(step == steps - 1)(functools.partial(softmax.finish, out))

    def _visit(self, walk: "_Walk", table: TileTable, reach: Reach, row: Array, block: Array) -> None:
        if wide := reach.wide_tiles(self.tiling):
            self._each(self.tiling.asking, row, block, functools.partial(self._wide, walk, table.wide, wide))
        if window := reach.window(self.tiling):
            self._each(self.tiling.narrow, row, block, functools.partial(self._narrow, walk, table.narrow, window))

    def _each(self, size: int, row: Array, block: Array, visit: Callable[[Array, Array, Any], None]) -> None:
        """`visit(tile of the row, tile of all rows, its tokens in the block)` for every asking tile of the block."""
        in_row, in_block = self.tokens // size, min(self.tiling.asking_block, self.tokens) // size
        first = block * in_block

        def one(t: Array, _: None) -> None:
            visit(first + t, row * in_row + first + t, pl.ds(pl.multiple_of(t * size, size), size))

        jax.lax.fori_loop(0, jnp.minimum(in_block, in_row - first), one, None)

    def _wide(self, walk: "_Walk", table: Any, most: int, tile: Array, of_all: Array, asking: Any) -> None:
        size = self.tiling.wide
        in_block = self.tiling.key_block // size
        first = walk.block * in_block

        def one(n: Array, _: None) -> None:
            state = table[of_all * most + first + n]
            keys = pl.ds(pl.multiple_of(n * size, size), size)
            pl.when(state == WHOLE)(lambda: walk.take(asking, keys, masked=False))
            pl.when(state == PARTLY)(lambda: walk.take(asking, keys, masked=True))

        jax.lax.fori_loop(0, jnp.clip(most - first, 0, in_block), one, None)

    def _narrow(self, walk: "_Walk", table: Any, window: int, tile: Array, of_all: Array, asking: Any) -> None:
        size = self.tiling.narrow
        in_block = self.tiling.key_block // size

        def one(back: Array, _: None) -> None:
            n = tile - back - walk.block * in_block
            here = (n >= 0) & (n < in_block) & (table[of_all * window + back] == PARTLY)
            keys = pl.ds(pl.multiple_of(n * size, size), size)
            pl.when(here)(lambda: walk.take(asking, keys, masked=True))

        jax.lax.fori_loop(0, window, one, None)


@dataclass(frozen=True)
class _Walk:
    """One block of keys, and the running softmax they go into."""

    softmax: "_Softmax"
    rule: Rule
    asking: Any
    k: Any
    v: Any
    places: Any
    block: Array  # its number

    def take(self, asking: Any, keys: Any, masked: bool) -> None:
        seen = self.rule(_places_at(self.asking, asking), _places_at(self.places, keys)) if masked else None
        self.softmax.add(asking, self.k, self.v, keys, seen)


@dataclass(frozen=True)
class _Softmax:
    """The running softmax of a block of tokens, [heads, tokens, lanes] each: maximum (the same in all lanes), sum (of
    every 128th key, lanes are added up at the end) and weighted values.

    In base 2, the exponential that the chip has. A token whose keys so far are all masked gathers weights of 1, which
    the first key it sees scales to 0; only padding never sees any."""

    heads: Heads
    q: Any
    top: Any
    total: Any
    weighted: Any

    def begin(self, q_columns: Any) -> None:
        for head in range(self.heads.in_step):
            self.q[head] = q_columns[self._of(head, 1)].T
        self.top[...] = jnp.full_like(self.top, MASKED)
        self.total[...] = jnp.zeros_like(self.total)
        self.weighted[...] = jnp.zeros_like(self.weighted)

    def add(self, asking: Any, k: Any, v: Any, keys: Any, seen: Array | None) -> None:
        """One key tile for one asking tile. Written as a pipeline over heads, since the compiler keeps to this order:
        products for the next head's scores, products of the last head's weights, exponentials of this one."""

        def scores_of(head: int) -> Array:
            scores = _dot(self.q[head, asking], k[self._of(head, self.heads.group), keys], 0)
            return scores if seen is None else jnp.where(seen, scores, MASKED)

        def add_values(head: int, shrink: Array, weights: Array) -> None:
            values = _dot(weights, v[self._of(head, self.heads.group), keys], 1)
            self.weighted[head, asking] = self.weighted[head, asking] * _spread(shrink, self.heads.head_dim) + values

        following, last = scores_of(0), None
        for head in range(self.heads.in_step):
            scores = following
            if head + 1 < self.heads.in_step:
                following = scores_of(head + 1)
            if last is not None:
                add_values(head - 1, *last)
            last = self._weights(head, asking, scores, v.dtype)
        assert last is not None
        add_values(self.heads.in_step - 1, *last)

    def _weights(self, head: int, asking: Any, scores: Array, dtype: Any) -> tuple[Array, Array]:
        """By how much the sums so far shrink, and the tile's weights."""
        scale = self.heads.head_dim**-0.5 * math.log2(math.e)
        top = self.top[head, asking]
        higher = jnp.maximum(top, jnp.max(scores, axis=1, keepdims=True))
        lanes = top.shape[1]
        parts = [jnp.exp2((scores[:, at : at + lanes] - higher) * scale) for at in range(0, scores.shape[1], lanes)]
        shrink = jnp.exp2((top - higher) * scale)
        self.top[head, asking] = higher
        self.total[head, asking] = self.total[head, asking] * shrink + sum(parts[1:], parts[0])
        return shrink, jnp.concatenate([part.astype(dtype) for part in parts], axis=1)

    def finish(self, out: Any) -> None:
        for head in range(self.heads.in_step):
            total = jnp.sum(self.total[head], axis=1, keepdims=True)
            mean = self.weighted[head] / jnp.where(total > 0, total, 1.0)
            out[:, self._of(head, 1)] = mean.astype(out.dtype)

    def _of(self, head: int, sharing: int) -> slice:
        """Where a head lies among the dimensions of heads, `sharing` of which have the same ones."""
        first = head // sharing * self.heads.head_dim
        return slice(first, first + self.heads.head_dim)


def _dot(a: Array, b: Array, over: int) -> Array:
    """a · b over a's last axis and axis `over` of b, accumulated in float32."""
    return jax.lax.dot_general(
        a, b, (((1,), (over,)), ((), ())), precision=precision(a.dtype), preferred_element_type=jnp.float32
    )


def _spread(a: Float[Array, "tokens lanes"], width: int) -> Float[Array, "tokens width"]:
    """As many columns as wanted of an array whose columns are all the same."""
    return a[:, :width] if width <= a.shape[1] else jnp.tile(a, (1, width // a.shape[1]))


def _places_at(ref: Any, tokens: Any) -> Places:
    return Places(ref[0, tokens], ref[1, tokens], ref[2, tokens])


def _stacked(places: Places) -> Int[Array, "rows three tokens"]:
    return jnp.stack([places.segment, places.parent, places.position], axis=1).astype(jnp.int32)


def _scalars(table: Int[Array, "rows tiles entries"]) -> Int[Array, " entries"]:
    """Flat, as scalar memory is; the compiler takes no empty table."""
    return table.reshape(-1) if table.size else jnp.zeros(1, jnp.int32)


def _up(size: int, part: int) -> int:
    return -(-size // part) * part


def _heads_first(a: Float[Array, "rows tokens *heads head_dim"]) -> Float[Array, "rows heads_dims tokens"]:
    return jnp.moveaxis(a, 1, -1).reshape(a.shape[0], -1, a.shape[1])


def _pad(a: Float[Array, "rows *heads tokens"], spare: int, value: int = 0) -> Array:
    return jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, spare)], constant_values=value) if spare else a


def _pad_places(places: Places, spare: int) -> Places:
    return Places(
        _pad(places.segment, spare, PADDING), _pad(places.parent, spare, PADDING), _pad(places.position, spare)
    )
