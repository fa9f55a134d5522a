"""The definition of right: softmax attention with float32 accumulation under a dense mask from the visibility rule.

`block_bytes` bounds the scores held at once by asking in blocks of rows; without it the whole T×T mask and scores
exist, which is what mode `packed` with mask `dense` is. Speed is left to `cascade` and the kernels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from onepass.attention.base import Asking, Keys, Out, RowShape, precision
from onepass.attention.places import Places, concatenate, visible

MASKED = -1e30
Rule = Callable[[Places, Places], Bool[Array, "... asking keys"]]


@dataclass(frozen=True)
class Reference:
    block_bytes: int | None = 1 << 26
    rule: Rule = visible
    name: str = "reference"
    from_stack: ClassVar[bool] = False

    def prepare(self, places: Places, prefix: Places | None, shape: RowShape) -> None:
        return None

    def full(self, asking: Asking, own: Keys, prefix: Keys | None, shape: RowShape, prepared: None = None) -> Out:
        keys = join(prefix, own)
        rows, asked, kv_heads, group, _ = asking.q.shape
        block = asked
        if self.block_bytes is not None:
            row_bytes = 4 * rows * kv_heads * group * keys.k.shape[1]
            block = fit_block(asked, self.block_bytes // row_bytes)
        if block == asked:
            return masked_attention(asking.q, keys, asking.places, self.rule)
        return _in_blocks(asking, keys, block, self.rule)

    def readouts(self, asking: Asking, own: Keys, prefix: Keys | None, shape: RowShape) -> Out:
        return self.full(asking, own, prefix, shape)


def join(prefix: Keys | None, own: Keys) -> Keys:
    if prefix is None:
        return own
    return Keys(
        jnp.concatenate([prefix.k, own.k], axis=1),
        jnp.concatenate([prefix.v, own.v], axis=1),
        concatenate(prefix.places, own.places),
    )


def fit_block(total: int, wanted: int) -> int:
    """The largest divisor of `total` that is at most `wanted` (and at least 1)."""
    return next(b for b in range(max(1, min(total, wanted)), 0, -1) if total % b == 0)


def masked_attention(
    q: Float[Array, "rows asking kv_heads group head_dim"], keys: Keys, places: Places, rule: Rule
) -> Out:
    seen = rule(places, keys.places)[:, None, None]
    scores = jnp.where(seen, raw_scores(q, keys.k) * q.shape[-1] ** -0.5, MASKED)
    return weighted_values(jax.nn.softmax(scores, axis=-1), keys.v).astype(q.dtype)


# Both products are written as plain batched matrix products over heads: given the axes as they lie in memory, XLA on
# the CPU falls back to a loop that is 5 to 15 times slower (docs/log.md, 2026-11-15).


def raw_scores(
    q: Float[Array, "rows asking kv_heads group head_dim"], k: Float[Array, "rows keys kv_heads head_dim"]
) -> Float[Array, "rows kv_heads group asking keys"]:
    """q · k in float32, not yet divided by the root of the head's size."""
    rows, asked, kv_heads, group, head_dim = q.shape
    heads = q.transpose(0, 2, 3, 1, 4).reshape(rows * kv_heads, group * asked, head_dim)
    keys = k.transpose(0, 2, 1, 3).reshape(rows * kv_heads, -1, head_dim)
    scores = jnp.einsum("hqd,hkd->hqk", heads, keys, precision=precision(q.dtype), preferred_element_type=jnp.float32)
    return scores.reshape(rows, kv_heads, group, asked, -1)


def weighted_values(
    weights: Float[Array, "rows kv_heads group asking keys"], v: Float[Array, "rows keys kv_heads head_dim"]
) -> Float[Array, "rows asking kv_heads group head_dim"]:
    """Σ weight · value, accumulated in float32.

    With 16-bit values a weight is split in two 16-bit parts, so that 16 of its bits count instead of 8. Then modes
    nearly agree before their outputs are rounded (docs/log.md, 2026-11-15)."""
    rows, kv_heads, group, asked, keys = weights.shape
    heads = weights.reshape(rows * kv_heads, group * asked, keys)
    values = v.transpose(0, 2, 1, 3).reshape(rows * kv_heads, keys, -1)

    def product(part: Array) -> Array:
        return jnp.einsum(
            "hqk,hkd->hqd", part, values, precision=precision(v.dtype), preferred_element_type=jnp.float32
        )

    if v.dtype == heads.dtype:
        out = product(heads)
    else:
        kind = jnp.finfo(v.dtype)
        # Not a cast there and back: XLA may keep the excess precision of one, and the rest would be 0.
        high = jax.lax.reduce_precision(heads, kind.nexp, kind.nmant)
        out = product(high.astype(v.dtype)) + product((heads - high).astype(v.dtype))
    return out.reshape(rows, kv_heads, group, asked, -1).transpose(0, 3, 1, 2, 4)


def _in_blocks(asking: Asking, keys: Keys, block: int, rule: Rule) -> Out:
    def split(a: Array) -> Array:
        return jnp.moveaxis(a.reshape(a.shape[0], -1, block, *a.shape[2:]), 1, 0)

    def one(part: tuple[Array, Places]) -> Array:
        return masked_attention(part[0], keys, part[1], rule)

    out = jax.lax.map(one, (split(asking.q), jax.tree.map(split, asking.places)))
    return jnp.moveaxis(out, 0, 1).reshape(asking.q.shape)
