"""Cascade attention in plain XLA: three kinds of partial attention, merged by their log-sum-exp.

    block    every asking token sees every valid key: tokens → prefix, items → context. No mask but a length.
    causal   the context's own triangle, in row blocks that stop at the diagonal.
    band     item tokens see at most `band` places back, so blocks of `band` tokens need two blocks of keys.

Cost is O(T·P + C² / 2 + T·2W) with no T×T array and no padding of single items. The dense products may be given to
cuDNN (`dense="cudnn"`, NVIDIA, 16-bit), and the band with its merge to a Pallas kernel (`band="triton"`). The rule
itself is `places.visible`.
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from onepass.attention.base import Asking, Keys, Out, RowShape
from onepass.attention.cudnn import cudnn_partial
from onepass.attention.pallas_gpu import band_merge
from onepass.attention.places import PADDING, Places, visible
from onepass.attention.reference import MASKED, fit_block, raw_scores, weighted_values

# Normalised output [rows asking kv_heads group head_dim] and log-sum-exp [rows asking kv_heads group].
Partial = tuple[Array, Array]


@dataclass(frozen=True)
class Cascade:
    dense: Literal["xla", "cudnn"] = "xla"
    band: Literal["xla", "triton"] = "xla"
    block_bytes: int = 1 << 26
    name: str = "cascade"

    def full(self, asking: Asking, own: Keys, prefix: Keys | None, shape: RowShape) -> Out:
        context, items = _split(asking, 0, shape.context), _split(asking, shape.context, shape.tokens)
        context_keys, item_keys = own.take(0, shape.context), own.take(shape.context, shape.tokens)
        outs = []
        if shape.context:
            parts = [self._causal(context, context_keys)]
            if prefix is not None:
                parts.append(self._block(context.q, prefix))
            outs.append(merge(parts))
        if shape.items:
            shared = [self._block(items.q, keys) for keys in (prefix, context_keys if shape.context else None) if keys]
            outs.append(self._band(items, item_keys, shape.band, shared))
        out = outs[0] if len(outs) == 1 else jnp.concatenate(outs, axis=1)
        return out.astype(asking.q.dtype)

    def readouts(self, asking: Asking, own: Keys, prefix: Keys | None, shape: RowShape) -> Out:
        """Few rows ask, anywhere in the row: masks are cheap, and the band is a window gathered for each."""
        parts = []
        if prefix is not None:
            parts.append(masked_partial(asking.q, prefix, asking.places))
        if shape.context:
            parts.append(masked_partial(asking.q, own.take(0, shape.context), asking.places))
        if shape.items:
            items = own.take(shape.context, shape.tokens)
            parts.append(_windows(asking, items, min(shape.band, shape.items), shape.context))
        return merge(parts).astype(asking.q.dtype)

    def _block(self, q: Float[Array, "rows asking kv_heads group head_dim"], keys: Keys) -> Partial:
        lengths = keys.places.lengths()
        if self.dense == "cudnn":
            return cudnn_partial(q, keys, lengths, causal=False)
        return _xla_block(q, keys, lengths, self.block_bytes)

    def _causal(self, asking: Asking, keys: Keys) -> Partial:
        if self.dense == "cudnn":
            return cudnn_partial(asking.q, keys, None, causal=True)
        return _xla_causal(asking, keys)

    def _band(self, asking: Asking, keys: Keys, band: int, shared: list[Partial]) -> Out:
        """The items' own band, merged with what they saw of prefix and context."""
        if self.band == "triton":
            partial = merge_partials(shared) if len(shared) > 1 else shared[0] if shared else None
            return band_merge(asking.q, keys, partial, band)
        return merge([*shared, _xla_band(asking, keys, band, self.block_bytes)])


def merge(parts: list[Partial]) -> Float[Array, "rows asking kv_heads group head_dim"]:
    """Partial attentions over disjoint keys as one. A token that sees nothing gets zeros."""
    return parts[0][0] if len(parts) == 1 else merge_partials(parts)[0]


def merge_partials(parts: list[Partial]) -> Partial:
    top = jnp.maximum(jnp.stack([lse for _, lse in parts]).max(axis=0), MASKED)
    weights = [jnp.exp(lse - top) for _, lse in parts]
    total = sum(weights[1:], weights[0])
    out = sum(o.astype(jnp.float32) * w[..., None] for (o, _), w in zip(parts, weights, strict=True))
    return out / jnp.where(total == 0, 1.0, total)[..., None], top + jnp.log(total)


def masked_partial(q: Float[Array, "rows asking kv_heads group head_dim"], keys: Keys, places: Places) -> Partial:
    seen = visible(places, keys.places)[:, None, None]
    return _normalise(jnp.where(seen, raw_scores(q, keys.k), MASKED), _counted(keys.v), q.shape[-1] ** -0.5)


def _normalise(scores: Float[Array, "rows kv_heads group asking keys"], v: Array, scale: float) -> Partial:
    """Softmax and values from raw scores and `_counted` values; a row of masked scores alone gets log-sum-exp -inf."""
    top = scores.max(axis=-1, keepdims=True)
    out = weighted_values(jnp.exp((scores - top) * scale), v)
    out, total = out[..., :-1], out[..., -1]
    top = jnp.moveaxis(top[..., 0], 3, 1)
    seen = (top > MASKED) & (total > 0)
    lse = jnp.where(seen, top * scale + jnp.log(jnp.where(seen, total, 1.0)), -jnp.inf)
    return out / jnp.where(total > 0, total, 1.0)[..., None], lse


def _counted(v: Float[Array, "rows keys kv_heads head_dim"], valid: Array | None = None) -> Array:
    """Values with one more column, 1 where the key counts: the sum of the weights then falls out of the product, and
    needs no pass of its own over the scores. Keys that are not valid have value and count 0."""
    if valid is None:
        return jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1)
    count = jnp.broadcast_to(valid, (*v.shape[:-1], 1)).astype(v.dtype)
    return jnp.concatenate([jnp.where(valid, v, 0), count], axis=-1)


def _split(asking: Asking, start: int, stop: int) -> Asking:
    return Asking(asking.q[:, start:stop], asking.places.take(start, stop), asking.index[:, start:stop])


def _xla_block(q: Array, keys: Keys, lengths: Int[Array, " rows"], block_bytes: int) -> Partial:
    """Maskless: padding keys are copies of the first key, so that they change no maximum, with values and counts 0."""
    rows, asked, kv_heads, group, _ = q.shape
    width = keys.k.shape[1]
    valid = (jnp.arange(width) < lengths[:, None])[..., None, None]
    k = jnp.where(valid, keys.k, keys.k[:, :1])
    v = _counted(keys.v, valid)

    def one(part: Array) -> Partial:
        return _normalise(raw_scores(part, k), v, q.shape[-1] ** -0.5)

    block = fit_block(asked, block_bytes // (4 * rows * kv_heads * group * width))
    return _mapped(one, q, block)


def _mapped(one, q: Array, block: int) -> Partial:  # type: ignore[no-untyped-def]
    """`one` over blocks of asking tokens, one block's scores alive at a time."""
    if block == q.shape[1]:
        return one(q)
    blocks = jnp.moveaxis(q.reshape(q.shape[0], -1, block, *q.shape[2:]), 1, 0)
    out, lse = jax.lax.map(one, blocks)
    return (
        jnp.moveaxis(out, 0, 1).reshape(*q.shape),
        jnp.moveaxis(lse, 0, 1).reshape(q.shape[:-1]),
    )


def _xla_causal(asking: Asking, keys: Keys) -> Partial:
    """Row blocks: everything before the block is seen whole, the block itself under its triangle. Nothing above it is
    computed. (Padding comes last, so a padding key before a block is asked by padding rows only.)"""
    width = keys.k.shape[1]
    block = fit_block(width, max(256, width // 8))
    scale = asking.q.shape[-1] ** -0.5
    parts = []
    for start in range(0, width, block):
        some = _split(asking, start, start + block)
        part = masked_partial(some.q, keys.take(start, start + block), some.places)
        if start:
            before = _normalise(raw_scores(some.q, keys.k[:, :start]), _counted(keys.v[:, :start]), scale)
            part = merge_partials([part, before])
        parts.append(part)
    return jnp.concatenate([o for o, _ in parts], axis=1), jnp.concatenate([lse for _, lse in parts], axis=1)


def _xla_band(asking: Asking, keys: Keys, band: int, block_bytes: int) -> Partial:
    """Blocks of `band` tokens ask the keys of their own block and the one before."""
    rows, width, kv_heads, group, head_dim = asking.q.shape
    block = min(band, width)
    if block == width:
        return _banded(asking.q, keys, asking.places, block_bytes)
    spare = -width % block
    asking_places, key_places = _pad_places(asking.places, spare), _pad_places(keys.places, spare)
    count = (width + spare) // block

    def blocks(a: Array) -> Array:
        return a.reshape(rows * count, block, *a.shape[2:])

    def with_previous(a: Array, empty: int = 0) -> Array:
        a = a.reshape(rows, count, block, *a.shape[2:])
        before = jnp.concatenate([jnp.full_like(a[:, :1], empty), a[:, :-1]], axis=1)
        return jnp.concatenate([before, a], axis=2).reshape(rows * count, 2 * block, *a.shape[3:])

    key_places = Places(
        with_previous(key_places.segment, PADDING),
        with_previous(key_places.parent, PADDING),
        with_previous(key_places.position),
    )
    window = Keys(with_previous(_pad(keys.k, spare)), with_previous(_pad(keys.v, spare)), key_places)
    q = blocks(_pad(asking.q, spare))
    out, lse = _banded(q, window, jax.tree.map(blocks, asking_places), block_bytes)
    out = out.reshape(rows, -1, kv_heads, group, head_dim)[:, :width]
    return out, lse.reshape(rows, -1, kv_heads, group)[:, :width]


def _banded(q: Array, keys: Keys, places: Places, block_bytes: int) -> Partial:
    """Masked attention of many small blocks, as many at a time as `block_bytes` allows."""
    count, asked, kv_heads, group, _ = q.shape
    per_block = 4 * asked * kv_heads * group * keys.k.shape[1]
    at_once = fit_block(count, block_bytes * 4 // per_block)
    if at_once == count:
        return masked_partial(q, keys, places)

    def split(a: Array) -> Array:
        return a.reshape(count // at_once, at_once, *a.shape[1:])

    out, lse = jax.lax.map(lambda part: masked_partial(*part), jax.tree.map(split, (q, keys, places)))
    return out.reshape(q.shape), lse.reshape(q.shape[:-1])


def _windows(asking: Asking, keys: Keys, band: int, offset: int) -> Partial:
    """For each read-out row, the `band` item keys that end at its own token."""
    first = asking.index - offset - band + 1
    where = first[..., None] + jnp.arange(band)
    outside = (where < 0) | (where >= keys.k.shape[1])
    where = jnp.clip(where, 0, keys.k.shape[1] - 1)
    rows, asked = asking.index.shape

    def gather(a: Array) -> Array:
        picked = jax.vmap(lambda one, at: one[at])(a, where)
        return picked.reshape(rows * asked, band, *a.shape[2:])

    segment = jnp.where(outside.reshape(rows * asked, band), PADDING, gather(keys.places.segment))
    places = Places(segment, gather(keys.places.parent), gather(keys.places.position))
    window = Keys(gather(keys.k), gather(keys.v), places)
    # Context keys lie elsewhere: an item window holds none, so nothing is counted twice.
    flat = jax.tree.map(lambda a: a.reshape(rows * asked, 1, *a.shape[2:]), (asking.q, asking.places))
    out, lse = masked_partial(flat[0], window, flat[1])
    return out.reshape(asking.q.shape), lse.reshape(asking.q.shape[:-1])


def _pad(a: Array, spare: int, value: int = 0) -> Array:
    if not spare:
        return a
    return jnp.pad(a, [(0, 0), (0, spare)] + [(0, 0)] * (a.ndim - 2), constant_values=value)


def _pad_places(places: Places, spare: int) -> Places:
    return Places(
        _pad(places.segment, spare, PADDING), _pad(places.parent, spare, PADDING), _pad(places.position, spare)
    )


__all__ = ["Cascade", "merge"]
