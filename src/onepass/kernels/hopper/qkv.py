"""q, k and v on Hopper GPUs: the fused product with bias, norm and rotation at its end (Mosaic GPU), two heads at once.

Copying and multiplying is `gemm`; the layer's other products are `mlp`.
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

from onepass.kernels.hopper.epilogue import GemmInput, across, by_column, copy_parts, row_of, tile_of
from onepass.kernels.hopper.gemm import Gemm
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
        begin=heads.begin, apart=True,
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
        """With cosines and sines, where tiles are narrow: there is room for them in registers."""
        turns = self.turns(refs, token) if columns < COLUMNS else None
        return self.given.size(refs[4:], token), turns

    def turns(self, refs, token):
        """Cosines and sines of a head's half, in parts."""
        starts = range(0, self.head_dim // 2, PART)
        return [[tile_of(ref.at[pl.ds(token, ROWS), pl.ds(start, PART)]) for ref in refs[2:4]] for start in starts]

    def epilogue(self, refs, staged, sums, early, token, head):
        row_size, turns = early
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
            self._rotate(staged, sums, slot, turns or self.turns(refs, token), more[:2], layer)

        plgpu.commit_smem()
        pl.when(slot < group)(lambda: copy_parts(staged, q.at[rows, kv_head * group + slot], 0))
        pl.when(slot == group)(lambda: copy_parts(staged, k.at[rows, kv_head], 0))
        pl.when(slot == group + 1)(lambda: copy_parts(staged, v.at[rows, kv_head], 0))

    def _rotate(self, staged, sums, slot, turns, norms, layer):
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

        for start, (cos, sin) in zip(range(0, half, PART), turns, strict=True):
            one, other = part(start), part(half + start)
            staged[start // PART] = (one * cos - other * sin).astype(DTYPE)
            staged[(half + start) // PART] = (other * cos + one * sin).astype(DTYPE)
