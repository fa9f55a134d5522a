"""The definition of right: softmax attention with float32 accumulation under a mask from the visibility rule.

Every token asks every key of the step and of its page table, in blocks of asking tokens whose scores stay within
`block_bytes`; without a bound the whole mask and all scores exist at once, which is what mask `dense` is. Speed is left
to `xla` and the kernels.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from onepass.attention.base import Heads, KeyValues, KvPool, Queries, Step, StepShape, precision, scatter
from onepass.attention.mask import Places, visible

MASKED = -1e30
Rule = Callable[[Places, Places], Bool[Array, "... asking keys"]]


@dataclass(frozen=True)
class Reference:
    block_bytes: int | None = 1 << 26
    rule: Rule = visible
    name: str = "reference"
    page: int = 64

    def prepare(self, queries: Queries, step: Step, shape: StepShape) -> None:
        return None

    def attend(
        self, q: Heads, keys: KeyValues, queries: Queries, step: Step, shape: StepShape, prepared: None = None
    ) -> Heads:
        k, v, places = all_keys(keys, step, shape)
        num_queries, kv_heads, group, _ = q.shape
        block = num_queries
        if self.block_bytes is not None:
            block = fit_block(num_queries, self.block_bytes // (4 * kv_heads * group * k.shape[0]))

        def some(part: tuple[Array, Places]) -> Array:
            return masked_attention(part[0], k, v, part[1], places, self.rule)

        if block == num_queries:
            return some((q, queries.places))
        parts = jax.tree.map(lambda a: a.reshape(-1, block, *a.shape[1:]), (q, queries.places))
        return jax.lax.map(some, parts).reshape(q.shape)

    def write(self, pool: KvPool, layer: Array, k: Array, v: Array, step: Step, prepared: object = None) -> KvPool:
        return scatter(pool, layer, k, v, step.slots)


def all_keys(keys: KeyValues, step: Step, shape: StepShape) -> tuple[Array, Array, Places]:
    """Keys and values of the page table's entries, then of the step, and their places."""

    def joined(kept: Array, own: Array) -> Array:
        pages = kept[keys.layer, step.pages.page]
        return jnp.concatenate([pages.reshape(-1, *pages.shape[2:]), own.astype(pages.dtype)])

    kept, own = step.pages.places(shape.page), step.own_keys
    places = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), kept, own)
    # What no step has written yet may be anything, and 0 · NaN is not 0.
    there = (places.segment >= 0)[:, None, None]
    k, v = joined(keys.pool.k, keys.k), joined(keys.pool.v, keys.v)
    return jnp.where(there, k, 0), jnp.where(there, v, 0), places


def fit_block(total: int, wanted: int) -> int:
    """The largest divisor of `total` that is at most `wanted` (and at least 1)."""
    return next(b for b in range(max(1, min(total, wanted)), 0, -1) if total % b == 0)


def masked_attention(q: Heads, k: Array, v: Array, asking: Places, places: Places, rule: Rule) -> Heads:
    seen = rule(asking, places)[None, None]
    scores = jnp.where(seen, raw_scores(q, k) * q.shape[-1] ** -0.5, MASKED)
    return weighted_values(jax.nn.softmax(scores, axis=-1), v).astype(q.dtype)


# Both products are written as plain batched matrix products over heads: given the axes as they lie in memory, XLA on
# the CPU falls back to a loop that is 5 to 15 times slower (docs/log.md, 2026-11-15).


def raw_scores(q: Heads, k: Float[Array, "keys kv_heads head_dim"]) -> Float[Array, "kv_heads group asking keys"]:
    """q · k in float32, not yet divided by the root of the head's size."""
    num_queries, kv_heads, group, head_dim = q.shape
    heads = q.transpose(1, 2, 0, 3).reshape(kv_heads, group * num_queries, head_dim)
    keys = k.transpose(1, 0, 2)
    scores = jnp.einsum("hqd,hkd->hqk", heads, keys, precision=precision(q.dtype), preferred_element_type=jnp.float32)
    return scores.reshape(kv_heads, group, num_queries, -1)


def weighted_values(
    weights: Float[Array, "kv_heads group asking keys"], v: Float[Array, "keys kv_heads head_dim"]
) -> Float[Array, "asking kv_heads group head_dim"]:
    """Σ weight · value, accumulated in float32.

    With 16-bit values a weight is split in two 16-bit parts, so that 16 of its bits count instead of 8. Then modes
    nearly agree before their outputs are rounded (docs/log.md, 2026-11-15)."""
    kv_heads, group, num_queries, keys = weights.shape
    heads, values = weights.reshape(kv_heads, group * num_queries, keys), v.transpose(1, 0, 2)

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
    return out.reshape(kv_heads, group, num_queries, -1).transpose(2, 0, 1, 3)
