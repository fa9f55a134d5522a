"""What the sums of a product on Hopper GPUs are multiplied by, and numbers loaded beside them in their layout.

The norm before a product divides a row by its size; the product's sums can be divided as well (`GemmInput.squares`).
Weights in 8 bits have a scale a row, which is a column of the sums.
"""

# mypy: disable-error-code="no-untyped-def"

from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from onepass.attention.fast_math import LOG2_E
from onepass.kernels.hopper.tiles import ROWS


@dataclass(frozen=True)
class GemmInput:
    """x as it is multiplied, how many of its tokens are real, and what its sums are multiplied by then."""

    x: Float[Array, "tokens size"]
    count: Int[Array, ""]
    squares: Float[Array, "parts tokens"] | None = None  # of the row before its norm: sums are divided by its size
    eps: float = 0.0
    scales: Float[Array, "layers columns"] | None = None  # of weights in 8 bits
    factor: float = 1.0  # of x, in 8 bits: the sums are multiplied by it, too

    @property
    def given(self) -> tuple[Array, ...]:
        return tuple(a for a in (self.squares, self.scales) if a is not None)

    def size(self, refs, token):
        """What the rows' sums are multiplied by; `refs` begin with those of `given`."""
        if self.squares is None:
            return None
        first, *others = (by_row(refs[0].at[n, pl.ds(token, ROWS)]) for n in range(self.squares.shape[0]))
        return lax.rsqrt(sum(others, first) / self.x.shape[1] + self.eps)

    def true(self, refs, size, sums, at_layer, column):
        if size is not None:
            sums = sums * lax.broadcast_in_dim(size, sums.shape, [0])
        if self.scales is not None:
            scales = by_column(refs[len(self.given) - 1], at_layer, column, sums.shape[1])
            sums = sums * (scales * self.factor)
        return sums


def tile_of(ref):
    return plgpu.load(ref, layout=plgpu.Layout.WGMMA, optimized=False)


def by_row(ref):
    return plgpu.load(ref, layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)


def by_column(ref, at_layer, start, width: int):
    return across(row_of(ref, at_layer, start, width), width)


def row_of(ref, at_layer, start, width: int):
    some = ref.at[at_layer, pl.ds(start, width)]
    return plgpu.load(some, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)


def across(row, width: int):
    return lax.broadcast_in_dim(row.astype(jnp.float32), (ROWS, width), [1])


def gated(gate, up):
    """silu(gate) · up"""
    return gate * up / (1 + jnp.exp2(gate * -LOG2_E))


def write_rows(staged, value, out, column) -> None:
    """To `out`'s rows, from `column` on, through `staged` [parts, ROWS, columns of a part]."""
    width = staged.shape[-1]
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    parts = value.shape[1] // width
    for n in range(parts):
        staged[n] = value[:, n * width : (n + 1) * width]
    plgpu.commit_smem()
    copy_parts(staged.at[pl.ds(0, parts)], out, column)


def write_part(staged, number, value, out, column) -> None:
    """One part of a row after another, through `staged` [parts at once, ROWS, columns of a part]."""
    at_once, _, width = staged.shape
    plgpu.wait_smem_to_gmem(at_once - 1, wait_read_only=True)
    part = staged.at[number % at_once]
    part[...] = value
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(part, out.at[:, pl.ds(column, width)])


def copy_parts(staged, out, column) -> None:
    parts, _, width = staged.shape
    for n in range(parts):
        plgpu.copy_smem_to_gmem(staged.at[n], out.at[:, pl.ds(column + n * width, width)])
