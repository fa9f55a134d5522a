"""Cascade attention: three kinds of partial attention, merged by their log-sum-exp.

    block    every asking token sees every valid key: tokens → prefix, items → context. No mask but a length.
    causal   the context's own triangle, in row blocks that stop at the diagonal.
    band     item tokens see at most `band` places back, so a block of tokens needs `band` keys more than its own.

Cost is O(T·P + C² / 2 + T·2W) with no T×T array and no padding of single items. In plain XLA (`xla_partials`) all that
a block of tokens sees is computed together. The dense products may be given to cuDNN (`dense="cudnn"`, NVIDIA,
16-bit), and the band with its merge to a Pallas kernel (`band="triton"`). The rule itself is `places.visible`.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from onepass.attention.base import Asking, Keys, Out, RowShape
from onepass.attention.cudnn import cudnn_partial
from onepass.attention.pallas_gpu import band_merge
from onepass.attention.places import PADDING, Places, visible
from onepass.attention.reference import MASKED, fit_block, raw_scores, weighted_values
from onepass.attention.xla_partials import Own, Partial, attend


@dataclass(frozen=True)
class Cascade:
    dense: Literal["xla", "cudnn"] = "xla"
    band: Literal["xla", "triton"] = "xla"
    block_bytes: int = 1 << 22  # of scores at a time, so that they stay in the caches of two cores
    name: str = "cascade"
    from_stack: ClassVar[bool] = False

    def prepare(self, places: Places, prefix: Places | None, shape: RowShape) -> None:
        return None

    def full(self, asking: Asking, own: Keys, prefix: Keys | None, shape: RowShape, prepared: None = None) -> Out:
        context, items = _split(asking, 0, shape.context), _split(asking, shape.context, shape.tokens)
        context_keys, item_keys = own.take(0, shape.context), own.take(shape.context, shape.tokens)
        outs = []
        if shape.context:
            outs.append(self._causal(context, context_keys, prefix))
        if shape.items:
            shared = [keys for keys in (prefix, context_keys if shape.context else None) if keys]
            outs.append(self._band(items, item_keys, shape.band, shared))
        outs = [out.astype(asking.q.dtype) for out in outs]
        return outs[0] if len(outs) == 1 else jnp.concatenate(outs, axis=1)

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
        if self.dense == "cudnn":
            return cudnn_partial(q, keys, keys.places.lengths(), causal=False)
        return attend(q, [keys], None, self.block_bytes)

    def _causal(self, asking: Asking, keys: Keys, prefix: Keys | None) -> Out:
        if self.dense == "cudnn":
            parts = [cudnn_partial(asking.q, keys, None, causal=True)]
            return merge(parts if prefix is None else [*parts, self._block(asking.q, prefix)])
        return _xla_causal(asking, keys, prefix, self.block_bytes)

    def _band(self, asking: Asking, keys: Keys, band: int, shared: list[Keys]) -> Out:
        """The items' own band, merged with what they see of prefix and context."""
        if self.band == "triton":
            partials = [self._block(asking.q, one) for one in shared]
            partial = merge_partials(partials) if len(partials) > 1 else partials[0] if partials else None
            return band_merge(asking.q, keys, partial, band)
        if self.dense == "cudnn":
            own = attend(asking.q, [], Own(asking.places, keys, band), self.block_bytes)
            return merge([*(self._block(asking.q, one) for one in shared), own])
        return attend(asking.q, shared, Own(asking.places, keys, band), self.block_bytes)[0]


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


def _xla_causal(asking: Asking, keys: Keys, prefix: Keys | None, block_bytes: int) -> Out:
    """Row blocks: everything before the block is seen whole, the block itself under its triangle. Nothing above it is
    computed. (Padding comes last, so a padding key before a block is asked by padding rows only.)"""
    width = keys.k.shape[1]
    block = fit_block(width, max(128, width // 8))
    outs = []
    for start in range(0, width, block):
        some, own = _split(asking, start, start + block), keys.take(start, start + block)
        shared = [one for one in (prefix, keys.take(0, start) if start else None) if one is not None]
        outs.append(attend(some.q, shared, Own(some.places, own, block), block_bytes)[0])
    return jnp.concatenate(outs, axis=1)


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


__all__ = ["Cascade", "merge"]
