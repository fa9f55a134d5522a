"""The two products of a layer that other work follows, with that work at their end, on Hopper GPUs (Mosaic GPU).

    gated_product    silu(x · gateᵀ) · (x · upᵀ)
    heads_product    q, k and v of x: bias, norm and rotation

XLA writes such a product and reads it again, and first copies the layer's weights out of their stack. Here weights are
read where they lie, and only the end's result is written. Both compute two accumulators of 64 tokens by 128 columns a
warpgroup: gate and up, or two heads. Copying and multiplying is `hopper_tiles`.
"""

# mypy: disable-error-code="no-untyped-def"

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from onepass.attention.fast_math import LOG2_E
from onepass.models.hopper_tiles import COLUMNS, DEPTH, ROWS, TOKENS, Product
from onepass.models.hopper_tiles import STAGED_PART as PART


def gated_takes(tokens: int, gate_up: Any) -> bool:
    """Whether the sizes are whole tiles."""
    mlp, size = gate_up.shape[2:]
    return tokens % TOKENS == 0 and mlp % COLUMNS == 0 and size % DEPTH == 0


def gated_product(
    x: Float[Array, "tokens size"],
    gate_up: Float[Array, "layers 2 mlp size"],
    layer: Int[Array, ""],
    multiprocessors: int,
    interpret: Any = False,
) -> Float[Array, "tokens mlp"]:
    mlp = gate_up.shape[2]

    def tile(refs, which, across):
        return refs[0].at[refs[1][0], which, pl.ds(across * COLUMNS, COLUMNS)]

    def finish(refs, staged, gate, up, token, across):
        value = gate * up / (1 + jnp.exp2(gate * -LOG2_E))
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        staged[...] = value.astype(x.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(staged, refs[2].at[pl.ds(token, ROWS), pl.ds(across * COLUMNS, COLUMNS)])

    made = jax.ShapeDtypeStruct((x.shape[0], mlp), x.dtype)
    product = Product("gated_product", mlp // COLUMNS, tile, finish, multiprocessors, interpret)
    return product.run(x, (gate_up, layer.reshape(1)), made)


@dataclass(frozen=True)
class Heads:
    """How the heads of the fused projection end; norms are [layers, head_dim] or None, as the bias is."""

    cos: Float[Array, "tokens half"]
    sin: Float[Array, "tokens half"]
    q_norm: Any
    k_norm: Any
    bias: Any  # [layers, kv_heads, group + 2, head_dim]
    eps: float


def heads_take(tokens: int, qkv: Any) -> bool:
    """Whether the sizes are whole tiles: two heads of 128 at a time."""
    kv_heads, slots, head_dim, size = qkv.shape[1:]
    return tokens % TOKENS == 0 and head_dim == COLUMNS and kv_heads * slots % 2 == 0 and size % DEPTH == 0


def heads_product(
    x: Float[Array, "tokens size"],
    qkv: Float[Array, "layers kv_heads group+2 head_dim size"],
    layer: Int[Array, ""],
    heads: Heads,
    multiprocessors: int,
    interpret: Any = False,
) -> tuple[Array, Array, Array]:
    """q [tokens kv_heads·group head_dim]; k and v [tokens kv_heads head_dim]."""
    layers, kv_heads, slots, head_dim, size = qkv.shape
    group, half = slots - 2, head_dim // 2
    norms = [] if heads.q_norm is None else [heads.q_norm, heads.k_norm]
    bias = [] if heads.bias is None else [heads.bias.reshape(layers, -1)]
    wide = [a.astype(jnp.float32) for a in (*norms, *bias)]

    def tile(refs, which, across):
        return refs[0].at[refs[1][0], 2 * across + which]

    def finish(refs, staged, first, second, token, across):
        for which, sums in enumerate((first, second)):
            _finish_head(refs, staged, sums, token, 2 * across + which)

    def _finish_head(refs, staged, sums, token, head):
        at_layer, cos, sin, (*more, q, k, v) = refs[1][0], refs[2], refs[3], refs[4:]
        slot, kv_head = head % slots, head // slots
        rows = pl.ds(token, ROWS)
        if bias:
            sums = sums + _by_column(more[-1], at_layer, head * head_dim, head_dim)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)

        @pl.when(slot == group + 1)
        def _value():
            staged[...] = sums.astype(x.dtype)

        def rotate(norm):
            size = lax.rsqrt((sums * sums).sum(axis=1) / head_dim + heads.eps) if norm is not None else sums

            def part(start):
                some = sums[:, start : start + PART]
                if norm is None:
                    return some
                return some * lax.broadcast_in_dim(size, some.shape, [0]) * _by_column(norm, at_layer, start, PART)

            for start in range(0, half, PART):
                one, other = part(start), part(half + start)
                at = (rows, pl.ds(start, PART))
                turns = [plgpu.load(ref.at[at], layout=plgpu.Layout.WGMMA, optimized=False) for ref in (cos, sin)]
                staged[:, start : start + PART] = (one * turns[0] - other * turns[1]).astype(x.dtype)
                staged[:, half + start : half + start + PART] = (other * turns[0] + one * turns[1]).astype(x.dtype)

        pl.when(slot < group)(lambda: rotate(more[0] if norms else None))
        pl.when(slot == group)(lambda: rotate(more[1] if norms else None))
        plgpu.commit_smem()
        pl.when(slot < group)(lambda: plgpu.copy_smem_to_gmem(staged, q.at[rows, kv_head * group + slot]))
        pl.when(slot == group)(lambda: plgpu.copy_smem_to_gmem(staged, k.at[rows, kv_head]))
        pl.when(slot == group + 1)(lambda: plgpu.copy_smem_to_gmem(staged, v.at[rows, kv_head]))

    def made(count: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((x.shape[0], count, head_dim), x.dtype)

    product = Product("heads_product", kv_heads * slots // 2, tile, finish, multiprocessors, interpret)
    weights = qkv.reshape(layers, kv_heads * slots, head_dim, size)
    given = (weights, layer.reshape(1), heads.cos, heads.sin, *wide)
    q, k, v = product.run(x, given, (made(kv_heads * group), made(kv_heads), made(kv_heads)))
    return q, k, v


def _by_column(ref, at_layer, start, width: int):
    some = ref.at[at_layer, pl.ds(start, width)]
    loaded = plgpu.load(some, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
    return lax.broadcast_in_dim(loaded, (ROWS, width), [1])
