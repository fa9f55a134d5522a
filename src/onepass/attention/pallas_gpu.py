"""The items' band and its merge with what they saw of the context, in one Pallas kernel (Triton) for NVIDIA GPUs.

Given the partial attention of item tokens to their context (o, lse: cuDNN's), a program takes one block of tokens and
one KV head, walks the key blocks of the band, and writes the merged output: XLA's band writes and reads scores, two
partial outputs and their weights instead.

    bytes a layer: q, o and the result once (3 · T·H·D), K and V (1 + band / block) times; arithmetic is small.

The rule is `places.visible`, called on the blocks' places. Head dimensions are powers of two from 16; others are
refused at load time by the registry.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

from onepass.attention.base import Keys
from onepass.attention.places import PADDING, Places, visible
from onepass.attention.reference import MASKED

KEYS = 32  # keys a step of the walk
ASKING = 64  # query rows a product: tokens times the heads of a group that are taken together


def band_merge(
    q: Float[Array, "rows items kv_heads group head_dim"],
    keys: Keys,
    partial: tuple[Array, Array] | None,
    band: int,
    interpret: bool = False,
) -> Float[Array, "rows items kv_heads group head_dim"]:
    """Attention of item tokens to their own band, merged with `partial` = (output, log-sum-exp) over other keys."""
    rows, items, kv_heads, group, head_dim = q.shape
    # A group whose size is a power of two is one product; Triton's blocks know no other sizes.
    together = group if group & (group - 1) == 0 else 1
    block = max(16, ASKING // together)
    spare = -items % max(block, KEYS)
    if spare:
        q, keys = _pad(q, spare), Keys(_pad(keys.k, spare), _pad(keys.v, spare), _pad_places(keys.places, spare))
        partial = None if partial is None else (_pad(partial[0], spare), _pad(partial[1], spare))
    kernel = functools.partial(_kernel, before=min(band, items) - 1, together=together, scale=head_dim**-0.5)
    heads = pl.BlockSpec((None, block, None, group, head_dim), lambda r, h, i: (r, i, h, 0, 0))
    sums = pl.BlockSpec((None, block, None, group), lambda r, h, i: (r, i, h, 0))
    whole = pl.BlockSpec((None, items + spare, None, head_dim), lambda r, h, i: (r, 0, h, 0))
    places = pl.BlockSpec((None, items + spare), lambda r, h, i: (r, 0))
    out = pl.pallas_call(
        kernel,
        grid=(rows, kv_heads, (items + spare) // block),
        in_specs=[heads, whole, whole, places, places, places, *([heads, sums] if partial is not None else [])],
        out_specs=heads,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
        name="band_merge",
    )(q, keys.k, keys.v, keys.places.segment, keys.places.parent, keys.places.position, *(partial or ()))
    return out[:, :items]


def _kernel(q_ref, k_ref, v_ref, segment, parent, position, *refs, before: int, together: int, scale: float):  # type: ignore[no-untyped-def]
    *partial, out_ref = refs
    block, group, head_dim = q_ref.shape
    start = pl.program_id(2) * block
    asked = block * together

    def at(first: Array, count: int) -> Places:
        here = pl.ds(first, count)
        return Places(segment[here], parent[here], position[here])

    asking = at(start, block)
    first_step = jnp.maximum(start - before, 0) // KEYS
    last_step = (start + block + KEYS - 1) // KEYS
    for g in range(0, group, together):
        some = slice(g, g + together) if together > 1 else g

        def take(ref, some=some):  # type: ignore[no-untyped-def]
            return ref[:, some].reshape(asked, *ref.shape[2:])

        q = take(q_ref)

        def step(j: Array, carry: tuple[Array, Array, Array], q: Array = q) -> tuple[Array, Array, Array]:
            top, total, out = carry
            here = pl.ds(j * KEYS, KEYS)
            k, v = k_ref[here, :], v_ref[here, :]
            seen = visible(asking, at(j * KEYS, KEYS))
            seen = jnp.broadcast_to(seen[:, None], (block, together, KEYS)).reshape(asked, KEYS)
            scores = jnp.where(seen, _dot(q, k, 1) * scale, MASKED)
            higher = jnp.maximum(top, scores.max(axis=1))
            weights = jnp.where(seen, jnp.exp(scores - higher[:, None]), 0.0)
            shrink = jnp.exp(top - higher)
            out = out * shrink[:, None] + _dot(weights.astype(v.dtype), v, 0)
            return higher, total * shrink + weights.sum(axis=1), out

        if partial:
            lse = jnp.maximum(take(partial[1]).astype(jnp.float32), MASKED)
            begin = lse, jnp.where(lse > MASKED, 1.0, 0.0), take(partial[0]).astype(jnp.float32)
        else:
            begin = jnp.full((asked,), MASKED), jnp.zeros((asked,)), jnp.zeros((asked, head_dim), jnp.float32)
        _, total, out = jax.lax.fori_loop(first_step, last_step, step, begin)
        out = (out / jnp.where(total > 0, total, 1.0)[:, None]).astype(out_ref.dtype)
        out_ref[:, some] = out.reshape(block, together, head_dim) if together > 1 else out


def _dot(a: Array, b: Array, over: int) -> Array:
    """a · b over a's last axis and axis `over` of b, accumulated in float32."""
    return jax.lax.dot_general(a, b, (((1,), (over,)), ((), ())), preferred_element_type=jnp.float32)


def _pad(a: Array, spare: int, value: int = 0) -> Array:
    return jnp.pad(a, [(0, 0), (0, spare)] + [(0, 0)] * (a.ndim - 2), constant_values=value)


def _pad_places(places: Places, spare: int) -> Places:
    return Places(*(_pad(a, spare, PADDING) for a in (places.segment, places.parent, places.position)))
