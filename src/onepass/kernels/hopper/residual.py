"""Products that are added to the residual stream on Hopper GPUs, and what the next norm asks for (Mosaic GPU).

XLA writes such a product and reads it again, and first copies the layer's weights out of their stack. Here weights are
read where they lie, and only the stream, the stream times the norm's weight, and its squares are written. Copying and
multiplying is `gemm`. The stream comes and goes through `late_tiles`, where tiles are wide; of a few tokens it is
loaded before the sums.
"""

# mypy: disable-error-code="no-untyped-def"

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from onepass.kernels.hopper.epilogue import GemmInput, by_column, tile_of
from onepass.kernels.hopper.gemm import Gemm
from onepass.kernels.hopper.late_tiles import AT_ONCE, LATE, LateSource
from onepass.kernels.hopper.tiles import COLUMNS, FEW_TOKENS, ROWS, TOGETHER, TOKENS, depth_of, whole_tiles

PART = LATE  # columns that are added and written at a time
LATE_COLUMNS = AT_ONCE * LATE  # of a step


@dataclass(frozen=True)
class ResidualEpilogue:
    """What a product is added to, and the weights of the norms that follow, by layer, or of those so many layers `on`;
    without them nothing is made ready for a norm."""

    residual: Float[Array, "tokens size"]
    bias: Float[Array, "layers size"] | None
    norms: Float[Array, "layers size"] | None
    on: int = 0


def takes_residual(tokens: int, weights: Any) -> bool:
    out, size = weights.shape[1:]
    whole = out % (2 * COLUMNS) == 0 and size % depth_of(weights.dtype) == 0
    return whole and whole_tiles(tokens, out // (2 * COLUMNS))


def columns_for(tokens: int, out: int, multiprocessors: int) -> int:
    """Wide tiles are fast ones, unless they leave more than half of the multiprocessors without work, or about that. Of
    a step that can have few tokens nobody knows how few it has: the narrowest of which half as many make one round."""
    if tokens <= FEW_TOKENS:
        one_round = FEW_TOKENS // 2 // TOKENS * out <= multiprocessors // TOGETHER * COLUMNS // 2
        return COLUMNS // 4 if one_round else COLUMNS // 2
    for columns in (COLUMNS, COLUMNS // 2):
        if 2.2 * (tokens // TOKENS) * (out // columns) >= multiprocessors:
            return columns
    return COLUMNS // 4


def halves_terms(tokens: int, weights: Any) -> bool:
    """Whether two multiprocessors take half of the terms each. Of a few tokens there are few tiles, and narrow ones are
    slow: most of what shared memory moves then are tokens."""
    return tokens <= FEW_TOKENS and weights.shape[2] % (TOGETHER * depth_of(weights.dtype)) == 0


def square_parts(tokens: int, out: int, multiprocessors: int) -> int:
    """In how many parts `residual_product` returns the squares of a row: one a tile."""
    return max(1, out // columns_for(tokens, out, multiprocessors))


def residual_product(
    given: GemmInput,
    weights: Float[Array, "layers size terms"],
    layer: Int[Array, ""],
    added: ResidualEpilogue,
    multiprocessors: int,
    interpret: Any = False,
) -> tuple[Array, Array | None, Array]:
    """The stream in 32 bits; times the norm's weight in 16 bits; its squares in parts [parts, tokens]."""
    tokens, out = added.residual.shape
    columns, halves = columns_for(tokens, out, multiprocessors), halves_terms(tokens, weights)
    norms = [] if added.norms is None else [added.norms]
    bias = [] if added.bias is None else [added.bias]
    parts = square_parts(tokens, out, multiprocessors)
    outputs = (
        jax.ShapeDtypeStruct((tokens, out), jnp.float32),
        *(jax.ShapeDtypeStruct((tokens, out), jnp.bfloat16) for _ in norms),
        jax.ShapeDtypeStruct((parts, tokens), jnp.float32),
    )
    stream = _Stream(given, added, weights.shape[0] - 1, columns, halves)
    gemm = Gemm(
        "residual_product", parts // 2, stream.tile, stream.epilogue, multiprocessors, jnp.bfloat16, interpret, columns,
        begin=stream.begin, late=LateSource(stream.late_steps, stream.late_tile) if columns == COLUMNS else None,
        parts=1 if halves else 2, weights_first=True, halves=halves,
    )  # fmt: skip
    more = (weights, layer.reshape(1), added.residual, *given.given, *norms, *bias)
    x, *ready, squares = gemm.run(given.x, given.count, more, outputs)
    return x, ready[0] if ready else None, squares


@dataclass(frozen=True)
class _Stream:
    """What `Gemm` calls. In `refs`: weights, layer, the stream, what `given` brings, norms, bias, and the results."""

    given: GemmInput
    added: ResidualEpilogue
    last: int  # layer: after it comes no norm of a layer, and what is made ready then, nobody reads
    columns: int
    halves: bool

    def tile(self, refs, which, across, columns):
        return refs[0].at[refs[1][0], pl.ds((2 * across + which) * columns, columns)]

    def begin(self, refs, token, number, columns):
        """Of tiles in halves of the terms: there is room for it in registers."""
        return tile_of(refs[2].at[pl.ds(token, ROWS), pl.ds(number * columns, columns)]) if self.halves else None

    def late_steps(self, columns):
        return 2 * columns // LATE_COLUMNS

    def late_tile(self, refs, across, columns, step, which):
        return refs[2].at[:, pl.ds(across * 2 * columns + (AT_ONCE * step + which) * LATE, LATE)]

    def epilogue(self, refs, staged, sums, early, late, token, across):
        columns, tiles = self.columns, sums.shape[1] // self.columns
        for n in range(tiles):
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            if n > 0:
                self.release(late, n - 1)
            some = sums[:, n * columns : (n + 1) * columns]
            self.add(refs, staged, some, early, late, token, across * tiles + n, n)
        if late is not None:
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        self.release(late, tiles - 1)

    def release(self, late, n):
        """The steps of the n-th tile: what was written there has left."""
        if late is not None:
            steps = self.columns // LATE_COLUMNS
            for step in range(n * steps, (n + 1) * steps):
                late.release(step)

    def add(self, refs, staged, sums, early, late, token, number, n):
        """One tile, in parts: `number` among all, the n-th of these sums."""
        x_in, rows = refs[2], pl.ds(token, ROWS)
        x_out, squares_out, narrow = self.results(refs)
        squares: Any = None
        for start in range(0, self.columns, PART):
            at = rows, pl.ds(number * self.columns + start, PART)
            at_late = (n * self.columns + start) // LATE
            part = self.product(refs, sums[:, start : start + PART], number * self.columns + start)
            if late is not None:
                if at_late % AT_ONCE == 0:
                    late.wait(at_late // AT_ONCE)
                part = part + late.load(at_late)
                late.rows(at_late)[...] = part
            else:
                part = part + (tile_of(x_in.at[at]) if early is None else early[:, start : start + PART])
                x_out[at] = part
            squares = part * part if squares is None else squares + part * part
            if narrow is not None:
                staged[start // PART] = self.ready(refs, part, number * self.columns + start)
        plgpu.commit_smem()
        for start in range(0, self.columns, PART):
            at = rows, pl.ds(number * self.columns + start, PART)
            if late is not None:
                plgpu.copy_smem_to_gmem(late.rows((n * self.columns + start) // LATE), x_out.at[at])
            if narrow is not None:
                plgpu.copy_smem_to_gmem(staged.at[start // PART], narrow.at[at])
        squares_out[number, rows] = squares.sum(axis=1)

    def results(self, refs):
        """The stream, its squares, and what is made ready, if anything is."""
        if self.added.norms is None:
            return refs[-2], refs[-1], None
        return refs[-3], refs[-1], refs[-2]

    def product(self, refs, sums, column):
        sums = self.given.true(refs[3:], None, sums, refs[1][0], column)
        if self.added.bias is None:
            return sums
        bias = refs[3 + len(self.given.given) + (self.added.norms is not None)]
        return sums + by_column(bias, refs[1][0], column, PART)

    def ready(self, refs, part, column):
        norms, at = refs[3 + len(self.given.given)], jnp.minimum(refs[1][0] + self.added.on, self.last)
        return (part * by_column(norms, at, column, PART)).astype(jnp.bfloat16)
