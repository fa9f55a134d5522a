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

from onepass.kernels.hopper.epilogue import GemmInput, across, by_column, row_of, tile_of
from onepass.kernels.hopper.gemm import COLUMNS, ROWS, Gemm, depth_of, whole_tiles
from onepass.kernels.hopper.gemm import STAGED_PART as PART


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
    qkv: Float[Array, "layers kv_heads group+2 head_dim size"],
    layer: Int[Array, ""],
    ends: QkvEpilogue,
    multiprocessors: int,
    interpret: Any = False,
) -> tuple[Array, Array, Array]:
    """q [tokens kv_heads·group head_dim]; k and v [tokens kv_heads head_dim]; in 16 bits."""
    layers, kv_heads, slots, head_dim, size = qkv.shape
    group, half = slots - 2, head_dim // 2
    norms = [] if ends.q_norm is None else [ends.q_norm, ends.k_norm]
    bias = [] if ends.bias is None else [ends.bias.reshape(layers, -1)]
    dtype = jnp.bfloat16

    def tile(refs, which, across):
        return refs[0].at[refs[1][0], 2 * across + which]

    def begin(refs, token):
        return given.size(refs[4:], token)

    def epilogue(refs, staged, sums, row_size, token, head):
        at_layer, turns, (*more, q, k, v) = refs[1][0], refs[2:4], refs[4:]
        slot, kv_head = head % slots, head // slots
        rows = pl.ds(token, ROWS)
        sums = given.true(more, row_size, sums, at_layer, head * head_dim)
        more = more[len(given.given) :]
        if bias:
            sums = sums + by_column(more[-1], at_layer, head * head_dim, head_dim)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)

        @pl.when(slot == group + 1)
        def _value():
            staged[...] = sums.astype(dtype)

        @pl.when(slot <= group)
        def _rotated():
            size = lax.rsqrt((sums * sums).sum(axis=1) / head_dim + ends.eps) if norms else None

            def part(start):
                some = sums[:, start : start + PART]
                if size is None:
                    return some
                # One branch for as little as this: all of a rotation twice would take twice as long to compile.
                of_queries, of_keys = (functools.partial(row_of, ref, at_layer, start, PART) for ref in more[:2])
                norm = across(lax.cond(slot == group, of_keys, of_queries), PART)
                return some * lax.broadcast_in_dim(size, some.shape, [0]) * norm

            for start in range(0, half, PART):
                one, other = part(start), part(half + start)
                cos, sin = (tile_of(ref.at[rows, pl.ds(start, PART)]) for ref in turns)
                staged[:, start : start + PART] = (one * cos - other * sin).astype(dtype)
                staged[:, half + start : half + start + PART] = (other * cos + one * sin).astype(dtype)

        plgpu.commit_smem()
        pl.when(slot < group)(lambda: plgpu.copy_smem_to_gmem(staged, q.at[rows, kv_head * group + slot]))
        pl.when(slot == group)(lambda: plgpu.copy_smem_to_gmem(staged, k.at[rows, kv_head]))
        pl.when(slot == group + 1)(lambda: plgpu.copy_smem_to_gmem(staged, v.at[rows, kv_head]))

    def made(count: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((given.x.shape[0], count, head_dim), dtype)

    pairs = kv_heads * slots // 2
    gemm = Gemm("qkv_product", pairs, tile, epilogue, multiprocessors, dtype, interpret, begin=begin, apart=True)
    weights = qkv.reshape(layers, kv_heads * slots, head_dim, size)
    more = (weights, layer.reshape(1), ends.cos, ends.sin, *given.given, *norms, *bias)
    q, k, v = gemm.run(given.x, given.count, more, (made(kv_heads * group), made(kv_heads), made(kv_heads)))
    return q, k, v
