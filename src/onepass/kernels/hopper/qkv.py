"""q, k and v on Hopper GPUs: the fused product with bias, norm and rotation at its end (Mosaic GPU), two heads at once.

Copying and multiplying is `gemm`; the layer's other products are `gate_up` and `residual`.
"""

# mypy: disable-error-code="no-untyped-def"

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from onepass.kernels.hopper.epilogue import GemmInput, across, by_column, copy_parts, row_of
from onepass.kernels.hopper.gemm import Gemm
from onepass.kernels.hopper.late_tiles import AT_ONCE, LATE, LateSource
from onepass.kernels.hopper.tiles import COLUMNS, ROWS, depth_of, whole_tiles
from onepass.kernels.hopper.tiles import STAGED_PART as PART

DTYPE = jnp.bfloat16  # of the results


@dataclass(frozen=True)
class QkvEpilogue:
    """How the heads of the fused projection end; norms are [layers, head_dim] or None, as the bias is."""

    cos: Float[Array, "tokens half"]
    sin: Float[Array, "tokens half"]
    q_norm: Any
    k_norm: Any
    bias: Any  # [layers, kv_heads, group + 2, head_dim]
    eps: float


def takes_qkv(tokens: int, qkv: Any) -> bool:
    """Whether the sizes are whole tiles: two heads of 128 at a time."""
    kv_heads, slots, head_dim, size = qkv.shape[1:]
    whole = head_dim == COLUMNS and kv_heads * slots % 2 == 0 and size % depth_of(qkv.dtype) == 0
    return whole and whole_tiles(tokens, kv_heads * slots // 2)


def qkv_product(
    given: GemmInput,
    qkv: Float[Array, "layers kv_heads slots head_dim size"],
    layer: Int[Array, ""],
    ends: QkvEpilogue,
    multiprocessors: int,
    interpret: Any = False,
) -> tuple[Array, Array, Array]:
    """q [tokens kv_heads·group head_dim]; k and v [tokens kv_heads head_dim]; in 16 bits."""
    layers, kv_heads, slots, head_dim, size = qkv.shape
    norms = [] if ends.q_norm is None else [ends.q_norm, ends.k_norm]
    bias = [] if ends.bias is None else [ends.bias.reshape(layers, -1)]
    heads = _Heads(given, ends, slots - 2, head_dim)
    gemm = Gemm(
        "qkv_product", kv_heads * slots // 2, heads.tile, heads.epilogue, multiprocessors, DTYPE, interpret,
        begin=heads.begin, late=LateSource(heads.late_steps, heads.late_tile),
    )  # fmt: skip
    weights = qkv.reshape(layers, kv_heads * slots * head_dim, size)
    operands = (weights, layer.reshape(1), ends.cos, ends.sin, *given.given, *norms, *bias)
    counts = (kv_heads * heads.group, kv_heads, kv_heads)
    out = tuple(jax.ShapeDtypeStruct((given.x.shape[0], count, head_dim), DTYPE) for count in counts)
    q, k, v = gemm.run(given.x, given.count, operands, out)
    return q, k, v


@dataclass(frozen=True)
class _Heads:
    """What `Gemm` calls for two heads of the projection. In `refs`: weights, layer, cosines and sines, what `given`
    brings, norms, bias, and the results q, k and v."""

    given: GemmInput
    ends: QkvEpilogue
    group: int
    head_dim: int

    def tile(self, refs, which, across, columns):
        return refs[0].at[refs[1][0], pl.ds((2 * across + which) * columns, columns)]

    def begin(self, refs, token, across, columns):
        return self.given.size(refs[4:], token)

    def late_steps(self, columns):
        return self.head_dim // 2 // LATE

    def late_tile(self, refs, across, columns, step, which):
        """Cosines, and sines."""
        return refs[2 + which].at[:, pl.ds(step * LATE, LATE)]

    def epilogue(self, refs, staged, sums, row_size, late, token, across):
        heads, steps = sums.shape[1] // self.head_dim, range(self.late_steps(0))
        for step in steps:
            late.wait(step)
        for n in range(heads):
            some = slice(n * self.head_dim, (n + 1) * self.head_dim)
            self._head(refs, staged, sums[:, some], row_size, late, token, across * heads + n)
        for step in steps:
            late.release(step)

    def _head(self, refs, staged, sums, row_size, late, token, head):
        layer, (*more, q, k, v) = refs[1][0], refs[4:]
        group = self.group
        slot, kv_head = head % (group + 2), head // (group + 2)
        rows = pl.ds(token, ROWS)
        sums = self.given.true(more, row_size, sums, layer, head * self.head_dim)
        more = more[len(self.given.given) :]
        if self.ends.bias is not None:
            sums = sums + by_column(more[-1], layer, head * self.head_dim, self.head_dim)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)

        @pl.when(slot == group + 1)
        def _value():
            for start in range(0, self.head_dim, PART):
                staged[start // PART] = sums[:, start : start + PART].astype(DTYPE)

        @pl.when(slot <= group)
        def _query_or_key():
            self._rotate(staged, sums, slot, late, more[:2], layer)

        plgpu.commit_smem()
        pl.when(slot < group)(lambda: copy_parts(staged, q.at[rows, kv_head * group + slot], 0))
        pl.when(slot == group)(lambda: copy_parts(staged, k.at[rows, kv_head], 0))
        pl.when(slot == group + 1)(lambda: copy_parts(staged, v.at[rows, kv_head], 0))

    def _rotate(self, staged, sums, slot, late, norms, layer):
        """Of a query or key: its norm, where there is one, and the rotation."""
        half, size = self.head_dim // 2, None
        if self.ends.q_norm is not None:
            size = lax.rsqrt((sums * sums).sum(axis=1) / self.head_dim + self.ends.eps)

        def part(start):
            some = sums[:, start : start + PART]
            if size is None:
                return some
            # One branch for as little as this: all of a rotation twice would take twice as long to compile.
            of_queries, of_keys = (functools.partial(row_of, ref, layer, start, PART) for ref in norms)
            norm = across(lax.cond(slot == self.group, of_keys, of_queries), PART)
            return some * lax.broadcast_in_dim(size, some.shape, [0]) * norm

        for start in range(0, half, PART):
            step = AT_ONCE * (start // PART)
            cos, sin = late.load(step), late.load(step + 1)
            one, other = part(start), part(half + start)
            staged[start // PART] = (one * cos - other * sin).astype(DTYPE)
            staged[(half + start) // PART] = (other * cos + one * sin).astype(DTYPE)
