"""The products of the MLP and those added to the stream, with the work that follows at their end, on Hopper GPUs.

    gate_up_product    silu(x · gateᵀ) · (x · upᵀ)
    residual_product   the residual stream with the product added, and the squares of it that the next norm asks for

XLA writes such a product and reads it again, and first copies the layer's weights out of their stack. Here weights are
read where they lie, and only the end's result is written. All compute two accumulators of 64 tokens a warpgroup: gate
and up, or neighbours. Heads are `qkv`; copying and multiplying is `gemm`.
"""

# mypy: disable-error-code="no-untyped-def"

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from onepass.kernels.hopper.epilogue import GemmInput, by_column, gated, tile_of, write_rows
from onepass.kernels.hopper.gemm import Gemm
from onepass.kernels.hopper.one_round import gate_up_in_one_round, one_round_width
from onepass.kernels.hopper.tiles import COLUMNS, FEW_TOKENS, ROWS, STAGED_PART, TOGETHER, TOKENS, depth_of, whole_tiles


def takes_gate_up(tokens: int, gate_up: Any) -> bool:
    """Whether the sizes are whole tiles."""
    mlp, size = gate_up.shape[2:]
    whole = mlp % COLUMNS == 0 and size % depth_of(gate_up.dtype) == 0
    return whole and whole_tiles(tokens, mlp // COLUMNS)


def gate_up_product(
    given: GemmInput,
    gate_up: Float[Array, "layers 2 mlp size"],
    layer: Int[Array, ""],
    multiprocessors: int,
    interpret: Any = False,
) -> Float[Array, "tokens mlp"]:
    x, mlp = given.x, gate_up.shape[2]
    if (width := one_round_width(x.shape[0], gate_up, multiprocessors)) is not None:
        return gate_up_in_one_round(given, gate_up, layer, width, interpret)

    def tile(refs, which, across, columns):
        return refs[0].at[refs[1][0], which, pl.ds(across * columns, columns)]

    def begin(refs, token, across, columns):
        return given.size(refs[2:], token)

    def epilogue(refs, staged, sums, size, token, across):
        at_layer, more, columns = refs[1][0], refs[2:], sums.shape[1] // 2
        gate = given.true(more, size, sums[:, :columns], at_layer, across * columns)
        up = given.true(more, size, sums[:, columns:], at_layer, mlp + across * columns)
        write_rows(staged, gated(gate, up).astype(x.dtype), refs[-1].at[pl.ds(token, ROWS)], across * columns)

    outputs = jax.ShapeDtypeStruct((x.shape[0], mlp), x.dtype)
    # Of a few tokens the last round may be the second of two: 72 pairs of tiles for 66 programs (380 tokens, 6,144).
    parts = COLUMNS // STAGED_PART if x.shape[0] <= FEW_TOKENS else 2
    gemm = Gemm(
        "gate_up_product", mlp // COLUMNS, tile, epilogue, multiprocessors, x.dtype, interpret,
        begin=begin, parts=parts, weights_first=True,
    )  # fmt: skip
    return gemm.run(x, given.count, (gate_up, layer.reshape(1), *given.given), outputs)


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
    narrow = () if added.norms is None else (jax.ShapeDtypeStruct((tokens, out), jnp.bfloat16),)
    norms = [] if added.norms is None else [added.norms]
    last = weights.shape[0] - 1  # after it comes no norm of a layer: what is made ready then, nobody reads
    bias = [] if added.bias is None else [added.bias]

    def tile(refs, which, across, columns):
        return refs[0].at[refs[1][0], pl.ds((2 * across + which) * columns, columns)]

    def begin(refs, token, number, columns):
        """Of tiles in halves of the terms: there is room for it in registers."""
        return tile_of(refs[2].at[pl.ds(token, ROWS), pl.ds(number * columns, columns)]) if halves else None

    def epilogue(refs, staged, sums, residual, token, number):
        more, outputs = refs[3 : -2 - len(narrow)], refs[-2 - len(narrow) :]
        at_layer, column, rows = refs[1][0], number * columns, pl.ds(token, ROWS)
        at = (rows, pl.ds(column, columns))
        sums = given.true(more, None, sums, at_layer, column)
        more = more[len(given.given) :]
        if bias:
            sums = sums + by_column(more[-1], at_layer, column, columns)
        sums = sums + (tile_of(refs[2].at[at]) if residual is None else residual)
        outputs[0][at] = sums
        outputs[-1][number, rows] = (sums * sums).sum(axis=1)
        if narrow:
            norm = by_column(more[0], jnp.minimum(at_layer + added.on, last), column, columns)
            write_rows(staged, (sums * norm).astype(jnp.bfloat16), outputs[1].at[rows], column)

    parts = square_parts(tokens, out, multiprocessors)
    outputs = (
        jax.ShapeDtypeStruct((tokens, out), jnp.float32),
        *narrow,
        jax.ShapeDtypeStruct((parts, tokens), jnp.float32),
    )
    sizes = (parts // 2, tile, epilogue, multiprocessors, jnp.bfloat16, interpret, columns)
    gemm = Gemm(
        "residual_product", *sizes, begin=begin, apart=True, parts=1 if halves else 2, halves=halves, weights_first=True
    )
    more = (weights, layer.reshape(1), added.residual, *given.given, *norms, *bias)
    stream, *ready, squares = gemm.run(given.x, given.count, more, outputs)
    return stream, ready[0] if ready else None, squares
