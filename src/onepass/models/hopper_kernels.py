"""The products of a layer with the work that follows at their end, on Hopper GPUs (Mosaic GPU).

    heads_product    q, k and v: bias, norm and rotation
    gated_product    silu(x · gateᵀ) · (x · upᵀ)
    added_product    the residual stream with the product added, and the squares of it that the next norm asks for

XLA writes such a product and reads it again, and first copies the layer's weights out of their stack. Here weights are
read where they lie, and only the end's result is written. All compute two accumulators of 64 tokens a warpgroup: gate
and up, two heads, or neighbours. Copying and multiplying is `hopper_tiles`.

The norm before a product divides a row by its size; the product's sums can be divided as well (`Scaled.squares`).
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
from onepass.models.hopper_tiles import COLUMNS, ROWS, TOKENS, Product, depth_of, whole_tiles
from onepass.models.hopper_tiles import STAGED_PART as PART


@dataclass(frozen=True)
class Scaled:
    """x as it is multiplied, and what its sums are multiplied by then."""

    x: Float[Array, "tokens size"]
    squares: Float[Array, "tokens parts"] | None = None  # of the row before its norm: sums are divided by its size
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
        first, *others = (_by_row(refs[0].at[pl.ds(token, ROWS), n]) for n in range(self.squares.shape[1]))
        return lax.rsqrt(sum(others, first) / self.x.shape[1] + self.eps)

    def true(self, refs, size, sums, at_layer, column):
        if size is not None:
            sums = sums * lax.broadcast_in_dim(size, sums.shape, [0])
        if self.scales is not None:
            scales = _by_column(refs[len(self.given) - 1], at_layer, column, sums.shape[1])
            sums = sums * (scales * self.factor)
        return sums


def gated_takes(tokens: int, gate_up: Any) -> bool:
    """Whether the sizes are whole tiles."""
    mlp, size = gate_up.shape[2:]
    whole = mlp % COLUMNS == 0 and size % depth_of(gate_up.dtype) == 0
    return whole and whole_tiles(tokens, mlp // COLUMNS)


def gated_product(
    scaled: Scaled,
    gate_up: Float[Array, "layers 2 mlp size"],
    layer: Int[Array, ""],
    multiprocessors: int,
    interpret: Any = False,
) -> Float[Array, "tokens mlp"]:
    x, mlp = scaled.x, gate_up.shape[2]

    def tile(refs, which, across):
        return refs[0].at[refs[1][0], which, pl.ds(across * COLUMNS, COLUMNS)]

    def begin(refs, token):
        return scaled.size(refs[2:], token)

    def finish(refs, staged, sums, size, token, across):
        at_layer, more, (gate, up) = refs[1][0], refs[2:], sums
        gate = scaled.true(more, size, gate, at_layer, across * COLUMNS)
        up = scaled.true(more, size, up, at_layer, mlp + across * COLUMNS)
        value = gate * up / (1 + jnp.exp2(gate * -LOG2_E))
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        staged[...] = value.astype(x.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(staged, refs[-1].at[pl.ds(token, ROWS), pl.ds(across * COLUMNS, COLUMNS)])

    made = jax.ShapeDtypeStruct((x.shape[0], mlp), x.dtype)
    product = Product("gated_product", mlp // COLUMNS, tile, finish, multiprocessors, x.dtype, interpret, begin=begin)
    return product.run(x, (gate_up, layer.reshape(1), *scaled.given), made)


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
    whole = head_dim == COLUMNS and kv_heads * slots % 2 == 0 and size % depth_of(qkv.dtype) == 0
    return whole and whole_tiles(tokens, kv_heads * slots // 2)


def heads_product(
    scaled: Scaled,
    qkv: Float[Array, "layers kv_heads group+2 head_dim size"],
    layer: Int[Array, ""],
    heads: Heads,
    multiprocessors: int,
    interpret: Any = False,
) -> tuple[Array, Array, Array]:
    """q [tokens kv_heads·group head_dim]; k and v [tokens kv_heads head_dim]; in 16 bits."""
    layers, kv_heads, slots, head_dim, size = qkv.shape
    group, half = slots - 2, head_dim // 2
    norms = [] if heads.q_norm is None else [heads.q_norm, heads.k_norm]
    bias = [] if heads.bias is None else [heads.bias.reshape(layers, -1)]
    dtype = jnp.bfloat16

    def tile(refs, which, across):
        return refs[0].at[refs[1][0], 2 * across + which]

    def begin(refs, token):
        return scaled.size(refs[4:], token)

    def finish(refs, staged, sums, row_size, token, head):
        at_layer, turns, (*more, q, k, v) = refs[1][0], refs[2:4], refs[4:]
        slot, kv_head = head % slots, head // slots
        rows = pl.ds(token, ROWS)
        sums = scaled.true(more, row_size, sums, at_layer, head * head_dim)
        more = more[len(scaled.given) :]
        if bias:
            sums = sums + _by_column(more[-1], at_layer, head * head_dim, head_dim)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)

        @pl.when(slot == group + 1)
        def _value():
            staged[...] = sums.astype(dtype)

        def rotate(norm):
            size = lax.rsqrt((sums * sums).sum(axis=1) / head_dim + heads.eps) if norm is not None else sums

            def part(start):
                some = sums[:, start : start + PART]
                if norm is None:
                    return some
                return some * lax.broadcast_in_dim(size, some.shape, [0]) * _by_column(norm, at_layer, start, PART)

            for start in range(0, half, PART):
                one, other = part(start), part(half + start)
                cos, sin = (_tile(ref.at[rows, pl.ds(start, PART)]) for ref in turns)
                staged[:, start : start + PART] = (one * cos - other * sin).astype(dtype)
                staged[:, half + start : half + start + PART] = (other * cos + one * sin).astype(dtype)

        pl.when(slot < group)(lambda: rotate(more[0] if norms else None))
        pl.when(slot == group)(lambda: rotate(more[1] if norms else None))
        plgpu.commit_smem()
        pl.when(slot < group)(lambda: plgpu.copy_smem_to_gmem(staged, q.at[rows, kv_head * group + slot]))
        pl.when(slot == group)(lambda: plgpu.copy_smem_to_gmem(staged, k.at[rows, kv_head]))
        pl.when(slot == group + 1)(lambda: plgpu.copy_smem_to_gmem(staged, v.at[rows, kv_head]))

    def made(count: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((scaled.x.shape[0], count, head_dim), dtype)

    pairs = kv_heads * slots // 2
    product = Product("heads_product", pairs, tile, finish, multiprocessors, dtype, interpret, begin=begin, apart=True)
    weights = qkv.reshape(layers, kv_heads * slots, head_dim, size)
    given = (weights, layer.reshape(1), heads.cos, heads.sin, *scaled.given, *norms, *bias)
    q, k, v = product.run(scaled.x, given, (made(kv_heads * group), made(kv_heads), made(kv_heads)))
    return q, k, v


@dataclass(frozen=True)
class Added:
    """What a product is added to, and the weights of the norms that follow, by layer, or of those so many layers `on`;
    without them nothing is made ready for a norm."""

    residual: Float[Array, "tokens size"]
    bias: Float[Array, "layers size"] | None
    norms: Float[Array, "layers size"] | None
    on: int = 0


def added_takes(tokens: int, weights: Any) -> bool:
    out, size = weights.shape[1:]
    whole = out % (2 * COLUMNS) == 0 and size % depth_of(weights.dtype) == 0
    return whole and whole_tiles(tokens, out // (2 * COLUMNS))


def columns_for(tokens: int, out: int, multiprocessors: int) -> int:
    """Wide tiles are fast ones, unless they leave more than half of the multiprocessors without work, or about that."""
    for columns in (COLUMNS, COLUMNS // 2):
        if 2.2 * (tokens // TOKENS) * (out // columns) >= multiprocessors:
            return columns
    return COLUMNS // 4


def square_parts(tokens: int, out: int, multiprocessors: int) -> int:
    """In how many parts `added_product` returns the squares of a row: one a tile."""
    return max(1, out // columns_for(tokens, out, multiprocessors))


def added_product(
    scaled: Scaled,
    weights: Float[Array, "layers size terms"],
    layer: Int[Array, ""],
    added: Added,
    multiprocessors: int,
    interpret: Any = False,
) -> tuple[Array, Array | None, Array]:
    """The stream in 32 bits; times the norm's weight in 16 bits; its squares in parts [tokens, parts]."""
    tokens, out = added.residual.shape
    columns = columns_for(tokens, out, multiprocessors)
    narrow = () if added.norms is None else (jax.ShapeDtypeStruct((tokens, out), jnp.bfloat16),)
    norms = [] if added.norms is None else [added.norms]
    bias = [] if added.bias is None else [added.bias]

    def tile(refs, which, across):
        return refs[0].at[refs[1][0], pl.ds((2 * across + which) * columns, columns)]

    def finish(refs, staged, sums, _, token, number):
        given, made = refs[3 : -2 - len(narrow)], refs[-2 - len(narrow) :]
        at_layer, column, rows = refs[1][0], number * columns, pl.ds(token, ROWS)
        more, at = given[len(scaled.given) :], (rows, pl.ds(column, columns))
        sums = scaled.true(given, None, sums, at_layer, column)
        if bias:
            sums = sums + _by_column(more[-1], at_layer, column, columns)
        sums = sums + _tile(refs[2].at[at])
        made[0][at] = sums
        made[-1][rows, number] = (sums * sums).sum(axis=1)
        if narrow:
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            staged[...] = (sums * _by_column(more[0], at_layer + added.on, column, columns)).astype(jnp.bfloat16)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(staged, made[1].at[at])

    parts = square_parts(tokens, out, multiprocessors)
    made = (
        jax.ShapeDtypeStruct((tokens, out), jnp.float32),
        *narrow,
        jax.ShapeDtypeStruct((tokens, parts), jnp.float32),
    )
    sizes = (parts // 2, tile, finish, multiprocessors, jnp.bfloat16, interpret, columns)
    product = Product("added_product", *sizes, apart=True)
    given = (weights, layer.reshape(1), added.residual, *scaled.given, *norms, *bias)
    stream, *ready, squares = product.run(scaled.x, given, made)
    return stream, ready[0] if ready else None, squares


def _tile(ref):
    return plgpu.load(ref, layout=plgpu.Layout.WGMMA, optimized=False)


def _by_row(ref):
    return plgpu.load(ref, layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)


def _by_column(ref, at_layer, start, width: int):
    some = ref.at[at_layer, pl.ds(start, width)]
    loaded = plgpu.load(some, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
    return lax.broadcast_in_dim(loaded.astype(jnp.float32), (ROWS, width), [1])
