"""Partial attention in plain XLA: blocks of asking tokens, each against keys seen whole and a window of its own keys.

    shared   prefix and context of an item, earlier blocks of a context: every valid key is seen, no mask but a length.
    own      the asking tokens' own keys, at most `band` places back, under `places.visible`.

A block's scores are to stay in the cores' caches, and pass through them four times: product, maximum, weights, product.
Σ weight·value and Σ weight come out of one product, so that a weight rounded to 16 bits counts as rounded in both. What
is asked and merged is `cascade`'s choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from onepass.attention.base import Keys, precision
from onepass.attention.fast_math import LOG2_E, power_of_two, rounded
from onepass.attention.places import PADDING, Places, visible
from onepass.attention.reference import MASKED, fit_block

# Normalised output [rows asking kv_heads group head_dim] and log-sum-exp [rows asking kv_heads group].
Partial = tuple[Array, Array]

LEAST_BLOCK = 32  # asking tokens: fewer, and the products waste their tiles


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Heads:
    """Keys and values with heads first; the last column of `v` is 1 where the key counts, 0 where it is padding."""

    k: Float[Array, "heads keys head_dim"]
    v: Float[Array, "heads keys head_dim+1"]


@dataclass(frozen=True)
class Sums:
    """Σ 2^(score - top) · value with the sum of the weights as last column; scores are in units of log 2."""

    total: Float[Array, "heads asking head_dim+1"]
    top: Float[Array, "heads asking 1"]


@dataclass(frozen=True)
class Own:
    """The asking tokens' own keys: token i sees at most the `band` of them that end with key i."""

    places: Places  # of the asking tokens
    keys: Keys
    band: int


def attend(
    q: Float[Array, "rows asking kv_heads group head_dim"], shared: Sequence[Keys], own: Own | None, block_bytes: int
) -> Partial:
    """The asking tokens over all of `shared` and a band of `own`; about `block_bytes` of scores exist at once."""
    rows, width, kv_heads, group, _ = q.shape
    whole = [_whole(keys) for keys in shared]
    widest = max([keys.k.shape[1] for keys in whole] + [min(own.band, width) if own else 0])
    block = fit_block(width, max(LEAST_BLOCK, block_bytes // (4 * rows * kv_heads * group * widest)))
    stretch = block if own is None else fit_block(block, own.band)
    windows = None if own is None else _Windows.of(own, block, stretch)

    def one(part: tuple[Array, Array]) -> Partial:
        some, start = part
        heads = _heads_first(some, stretch)
        sums = [_over_whole(heads, keys) for keys in whole]
        if windows is not None:
            sums.append(_over_window(heads, windows, start))
        return _normalised(_merged(sums), some.shape, stretch)

    if block == width:
        return one((q, jnp.int32(0)))
    blocks = jnp.moveaxis(q.reshape(rows, -1, block, *q.shape[2:]), 1, 0)
    out, lse = jax.lax.map(one, (blocks, jnp.arange(0, width, block, dtype=jnp.int32)))
    return jnp.moveaxis(out, 0, 1).reshape(q.shape), jnp.moveaxis(lse, 0, 1).reshape(q.shape[:-1])


@dataclass(frozen=True)
class _Windows:
    """What stretches of asking tokens may see of their own keys: `band` keys before the stretch, and its own."""

    asking: Places
    keys: Heads
    places: Places
    block: int
    stretch: int
    band: int

    @classmethod
    def of(cls, own: Own, block: int, stretch: int) -> "_Windows":
        keys, width = own.keys, own.keys.k.shape[1]
        if stretch == width:
            return cls(own.places, _counted(keys), keys.places, block, stretch, 0)
        ahead = Keys(_ahead(keys.k, own.band), _ahead(keys.v, own.band), _places_ahead(keys.places, own.band))
        return cls(own.places, _counted(ahead), ahead.places, block, stretch, own.band)

    def at(self, start: Array) -> tuple[Places, Heads, Places]:
        """For the block at `start`, a row for each stretch: its tokens' places, its keys, and theirs."""
        return (
            self._cut(self.asking, start, 0),
            self._cut(self.keys, start, self.band),
            self._cut(self.places, start, self.band),
        )

    def _cut(self, tree: Any, start: Array, before: int) -> Any:
        def cut(a: Array) -> Array:
            some = jax.lax.dynamic_slice_in_dim(a, start, self.block + before, axis=1)
            parts = [some[:, at : at + self.stretch + before] for at in range(0, self.block, self.stretch)]
            return jnp.stack(parts, axis=1).reshape(-1, *parts[0].shape[1:])

        return jax.tree.map(cut, tree)


def _whole(keys: Keys) -> Heads:
    """Padding keys are copies of the first key, so that they change no maximum, with values and counts 0."""
    valid = (jnp.arange(keys.k.shape[1]) < keys.places.lengths()[:, None])[..., None, None]
    k = jnp.where(valid, keys.k, keys.k[:, :1])
    v = jnp.where(valid, jnp.concatenate([keys.v, jnp.ones_like(keys.v[..., :1])], axis=-1), 0)
    return Heads(_by_head(k), _by_head(v))


def _counted(keys: Keys) -> Heads:
    v = jnp.concatenate([keys.v, jnp.ones_like(keys.v[..., :1])], axis=-1)
    return Heads(_by_head(keys.k), _by_head(v))


def _by_head(a: Float[Array, "rows keys kv_heads size"]) -> Float[Array, "heads keys size"]:
    return a.transpose(0, 2, 1, 3).reshape(-1, a.shape[1], a.shape[3])


def _heads_first(q: Float[Array, "rows asking kv_heads group head_dim"], stretch: int) -> Array:
    """[heads, asking, head_dim], the asking tokens of a group in the order (stretch, group, token): a stretch with its
    whole group is then a matrix, too."""
    rows, asked, kv_heads, group, head_dim = q.shape
    q = q.reshape(rows, -1, stretch, kv_heads, group, head_dim).transpose(0, 3, 1, 4, 2, 5)
    return q.reshape(rows * kv_heads, asked * group, head_dim)


def _over_whole(q: Float[Array, "heads asking head_dim"], keys: Heads) -> Sums:
    sums = _summed(_scores(q, keys.k), keys.v, q.shape[-1])
    # Without a valid key there is no sum, and its top, a padding key's, must not decide a merge.
    return Sums(sums.total, jnp.where(sums.total[..., -1:] > 0, sums.top, MASKED))


def _over_window(q: Float[Array, "heads asking head_dim"], windows: _Windows, start: Array) -> Sums:
    places, keys, key_places = windows.at(start)
    seen = visible(places, key_places)  # [rows·stretches tokens keys]
    rows, stretches, width = len(windows.asking.segment), windows.block // windows.stretch, seen.shape[-1]
    scores = _scores(q.reshape(len(keys.k), -1, q.shape[-1]), keys.k)
    seen = seen.reshape(rows, 1, stretches, 1, -1, width)
    masked = jnp.where(
        seen, scores.reshape(rows, -1, stretches, scores.shape[1] // windows.stretch, windows.stretch, width), MASKED
    )
    sums = _summed(masked.reshape(scores.shape), keys.v, q.shape[-1])
    return Sums(sums.total.reshape(*q.shape[:-1], -1), sums.top.reshape(*q.shape[:-1], 1))


def _scores(q: Float[Array, "heads asking head_dim"], k: Float[Array, "heads keys head_dim"]) -> Array:
    return jnp.einsum("hqd,hkd->hqk", q, k, precision=precision(q.dtype), preferred_element_type=jnp.float32)


def _summed(scores: Float[Array, "heads asking keys"], v: Float[Array, "heads keys value"], head_dim: int) -> Sums:
    scale = LOG2_E * head_dim**-0.5
    top = scores.max(axis=-1, keepdims=True)
    weights = rounded(power_of_two((scores - top) * scale), v.dtype)
    total = jnp.einsum("hqk,hkd->hqd", weights, v, precision=precision(v.dtype), preferred_element_type=jnp.float32)
    return Sums(total, jnp.maximum(top * scale, MASKED))


def _merged(sums: Sequence[Sums]) -> Sums:
    if len(sums) == 1:
        return sums[0]
    top = jnp.stack([one.top for one in sums]).max(axis=0)
    return Sums(sum(one.total * jnp.exp2(one.top - top) for one in sums), top)  # type: ignore[arg-type]


def _normalised(sums: Sums, shape: tuple[int, ...], stretch: int) -> Partial:
    rows, asked, kv_heads, group, _ = shape

    def back(a: Array) -> Array:
        a = a.reshape(rows, kv_heads, -1, group, stretch, a.shape[-1]).transpose(0, 2, 4, 1, 3, 5)
        return a.reshape(rows, asked, kv_heads, group, -1)

    total, counted = sums.total[..., :-1], sums.total[..., -1:]
    some = jnp.where(counted > 0, counted, 1.0)
    lse = jnp.where(counted > 0, (sums.top + jnp.log2(some)) / LOG2_E, -jnp.inf)
    return back(total / some), back(lse)[..., 0]


def _ahead(a: Array, count: int, value: int = 0) -> Array:
    return jnp.pad(a, [(0, 0), (count, 0)] + [(0, 0)] * (a.ndim - 2), constant_values=value)


def _places_ahead(places: Places, count: int) -> Places:
    segment, parent = (_ahead(a, count, PADDING) for a in (places.segment, places.parent))
    return Places(segment, parent, _ahead(places.position, count))
