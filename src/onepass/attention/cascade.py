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
from onepass.attention.reference import MASKED, fit_block, scaled_scores, weighted_values

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
    return _normalise(scaled_scores(q, keys.k, visible(places, keys.places)[:, None, None]), keys.v)


def _normalise(scores: Float[Array, "rows kv_heads group asking keys"], v: Array) -> Partial:
    """Softmax and values from masked scores; a row of masked scores alone gets log-sum-exp -inf."""
    top = scores.max(axis=-1, keepdims=True)
    weights = jnp.where(scores <= MASKED, 0.0, jnp.exp(scores - top))
    total = weights.sum(axis=-1)
    out = weighted_values(weights, v)
    total = jnp.moveaxis(total, 3, 1)
    top = jnp.moveaxis(top[..., 0], 3, 1)
    lse = jnp.where(total > 0, top + jnp.log(jnp.maximum(total, 1e-38)), -jnp.inf)
    return out / jnp.where(total > 0, total, 1.0)[..., None], lse


def _split(asking: Asking, start: int, stop: int) -> Asking:
    return Asking(asking.q[:, start:stop], asking.places.take(start, stop), asking.index[:, start:stop])


def _xla_block(q: Array, keys: Keys, lengths: Int[Array, " rows"], block_bytes: int) -> Partial:
    rows, asked, kv_heads, group, _ = q.shape
    width = keys.k.shape[1]
    valid = (jnp.arange(width) < lengths[:, None])[:, None, None, None, :]

    def one(part: Array) -> Partial:
        return _normalise(scaled_scores(part, keys.k, valid), keys.v)

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
    """Row blocks against the keys up to the block's end: the upper triangle's tiles are never computed."""
    width = keys.k.shape[1]
    block = fit_block(width, max(256, width // 8))
    parts = []
    for start in range(0, width, block):
        some = _split(asking, start, start + block)
        parts.append(masked_partial(some.q, keys.take(0, start + block), some.places))
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
