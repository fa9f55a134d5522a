"""Gate and up on Hopper GPUs: silu(x · gateᵀ) · (x · upᵀ), in one kernel that reads weights where they lie.

Copying and multiplying is `gemm`, a tile of gate beside one of up; a few tokens are `one_round`.
"""

# mypy: disable-error-code="no-untyped-def"

from typing import Any

import jax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from onepass.kernels.hopper.epilogue import GemmInput, gated, write_rows
from onepass.kernels.hopper.gemm import Gemm
from onepass.kernels.hopper.one_round import gate_up_in_one_round, one_round_width
from onepass.kernels.hopper.tiles import COLUMNS, FEW_TOKENS, ROWS, STAGED_PART, depth_of, whole_tiles


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

    def epilogue(refs, staged, sums, size, _, token, across):
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
