"""Norm and rotation of query and key heads in one pass over the fused projection, on NVIDIA GPUs (Pallas, Triton).

XLA cuts the projection into q, k and v, norms and rotates them in several kernels that each read and write the heads.
Here a program takes a block of tokens and one KV head with its group, and every number is read and written once.

    bytes a layer: 2 · T · (heads + 2 · kv_heads) · head_dim · 2, and the angles

What is computed is `layers.finish_q` and `finish_k`; the result differs from theirs by one rounding less.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

TOKENS = 32  # of a program
WARPS = 4


def finished_heads(
    fused: Float[Array, "tokens kv_heads slots head_dim"],
    angles: tuple[Float[Array, "tokens half"], Float[Array, "tokens half"]],
    q_norm: Float[Array, " head_dim"] | None,
    k_norm: Float[Array, " head_dim"] | None,
    eps: float,
    interpret: bool = False,
) -> tuple[Array, Array, Array]:
    """q [tokens kv_heads group head_dim]; k and v [tokens kv_heads head_dim]; q and k normed and rotated."""
    tokens, kv_heads, slots, head_dim = fused.shape
    block = TOKENS if tokens % TOKENS == 0 else 16
    norms = [norm for norm in (q_norm, k_norm) if norm is not None]

    def heads(*size: int) -> pl.BlockSpec:
        return pl.BlockSpec((block, None, *size, head_dim), lambda t, h: (t, h, *[0] * len(size), 0))

    turns = pl.BlockSpec((block, head_dim // 2), lambda t, h: (t, 0))
    whole = pl.BlockSpec((head_dim,), lambda t, h: (0,))
    one = jax.ShapeDtypeStruct((tokens, kv_heads, head_dim), fused.dtype)
    q, k, v = pl.pallas_call(
        functools.partial(_kernel, eps=eps, normed=bool(norms)),
        grid=(tokens // block, kv_heads),
        in_specs=[heads(slots), turns, turns, *[whole] * len(norms)],
        out_specs=[heads(slots - 2), heads(), heads()],
        out_shape=[jax.ShapeDtypeStruct((*fused.shape[:2], slots - 2, head_dim), fused.dtype), one, one],
        compiler_params=plgpu.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
        name="finished_heads",
    )(fused, *angles, *norms)
    return q, k, v


def _kernel(fused, cos_ref, sin_ref, *refs, eps: float, normed: bool):  # type: ignore[no-untyped-def]
    *norms, q_ref, k_ref, v_ref = refs
    slots, head_dim = fused.shape[1:]
    group, half = slots - 2, head_dim // 2
    cos, sin = cos_ref[...], sin_ref[...]

    def finish(slot: int, norm) -> tuple[Array, Array]:  # type: ignore[no-untyped-def]
        first, second = (fused[:, slot, part].astype(jnp.float32) for part in (slice(0, half), slice(half, head_dim)))
        if norm is not None:
            squares = (first * first).sum(axis=1) + (second * second).sum(axis=1)
            size = jax.lax.rsqrt(squares / head_dim + eps)[:, None]
            first = first * size * norm[:half].astype(jnp.float32)
            second = second * size * norm[half:].astype(jnp.float32)
        return (first * cos - second * sin).astype(fused.dtype), (second * cos + first * sin).astype(fused.dtype)

    for slot in range(group):
        q_ref[:, slot, :half], q_ref[:, slot, half:] = finish(slot, norms[0] if normed else None)
    k_ref[:, :half], k_ref[:, half:] = finish(group, norms[1] if normed else None)
    v_ref[...] = fused[:, group + 1, :]
