"""Scoring attention in plain XLA, right on every device: blocks of asking tokens walk the ranges of `block_table`.

The walk is a loop whose length is data. On a CPU that costs nothing; on a GPU each turn waits for the host, so the
kernels are what is fast there. Online softmax in float32: highest score, sum of weights and weighted values so far.

    for block of 128 tokens:  for chunk of page entries in [first, end):  online(where(visible, q·kᵀ, -∞), v)
                              for tile of own keys in [own, own_end):     online(where(visible, q·kᵀ, -∞), v)
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array

from onepass.attention.base import Heads, KeyValues, KvPool, Queries, Step, StepShape, precision, scatter
from onepass.attention.block_table import BlockTable, block_table
from onepass.attention.fast_math import LOG2_E, power_of_two
from onepass.attention.mask import PADDING, Places, visible
from onepass.attention.reference import MASKED, Rule, fit_block

BLOCK = 128  # asking tokens, and own keys of a tile
CHUNK_KEYS = 256  # of pages at a time

Sums = tuple[Array, Array, Array]  # highest score [heads rows 1], total weight, weighted values [heads rows head_dim]


@dataclass(frozen=True)
class Xla:
    rule: Rule = visible
    name: str = "xla"
    page: int = 64

    def prepare(self, queries: Queries, step: Step, shape: StepShape) -> BlockTable:
        return block_table(queries, fit_block(queries.index.shape[0], BLOCK), shape.page)

    def attend(
        self, q: Heads, keys: KeyValues, queries: Queries, step: Step, shape: StepShape, prepared: BlockTable
    ) -> Heads:
        block = q.shape[0] // prepared.first.shape[0]
        walk = _Walk(self.rule, keys, step, shape)

        def some(part: tuple[Array, Places, BlockTable]) -> Array:
            return walk.block(*part)

        parts = jax.tree.map(lambda a: a.reshape(-1, block, *a.shape[1:]), (q, queries.places))
        return jax.lax.map(some, (*parts, prepared)).reshape(q.shape)

    def write(self, pool: KvPool, layer: Array, k: Array, v: Array, step: Step, prepared: object = None) -> KvPool:
        return scatter(pool, layer, k, v, step.slots)


@dataclass(frozen=True)
class _Walk:
    rule: Rule
    keys: KeyValues
    step: Step
    shape: StepShape

    def block(self, q: Heads, asking: Places, table: BlockTable) -> Heads:
        num_queries, kv_heads, group, head_dim = q.shape
        heads = q.transpose(1, 2, 0, 3).reshape(kv_heads, group * num_queries, head_dim)
        empty = jnp.zeros((kv_heads, group * num_queries, 1), jnp.float32)
        sums = empty + MASKED, empty, jnp.zeros((*empty.shape[:2], head_dim), jnp.float32)
        chunk = max(1, min(CHUNK_KEYS // self.shape.page, self.shape.entries))
        tile = fit_block(self.shape.tokens, BLOCK)

        def pages(n: Array, sums: Sums) -> Sums:
            return self._add(heads, asking, sums, *self._entries(table.first + n * chunk, table.end, chunk))

        def own(n: Array, sums: Sums) -> Sums:
            return self._add(heads, asking, sums, *self._own(n * tile, tile))

        sums = jax.lax.fori_loop(0, -(-(table.end - table.first) // chunk), pages, sums)
        _, total, out = jax.lax.fori_loop(table.own // tile, -(-table.own_end // tile), own, sums)
        out = out / jnp.where(total > 0, total, 1.0)
        return out.reshape(kv_heads, group, num_queries, head_dim).transpose(2, 0, 1, 3).astype(q.dtype)

    def _entries(self, first: Array, end: Array, count: int) -> tuple[Array, Array, Places]:
        """Keys, values and places of so many entries, those from `end` on as padding."""
        number = first + jnp.arange(count)
        at = jnp.minimum(number, self.shape.entries - 1)
        table = jax.tree.map(lambda a: a[at], self.step.pages)
        places = table.places(self.shape.page)
        segment = jnp.where(jnp.repeat(number < end, self.shape.page), places.segment, PADDING)
        places = Places(segment, segment, segment, places.position)
        pool, there = self.keys.pool, (segment != PADDING)[:, None, None]

        def taken(kept: Array) -> Array:
            pages = kept[self.keys.layer, table.page]
            return jnp.where(there, pages.reshape(-1, *pages.shape[2:]), 0)  # never written: may be anything

        return taken(pool.k), taken(pool.v), places

    def _own(self, start: Array, size: int) -> tuple[Array, Array, Places]:
        cut = jax.tree.map(
            lambda a: jax.lax.dynamic_slice_in_dim(a, start, size), (self.keys.k, self.keys.v, self.step.own_keys)
        )
        return cut[0], cut[1], cut[2]

    def _add(self, q: Array, asking: Places, sums: Sums, k: Array, v: Array, places: Places) -> Sums:
        top, total, out = sums
        scale = LOG2_E * q.shape[-1] ** -0.5
        exact = precision(q.dtype)
        scores = jnp.einsum("hqd,khd->hqk", q, k.astype(q.dtype), precision=exact, preferred_element_type=jnp.float32)
        group = q.shape[1] // asking.segment.shape[0]
        seen = jnp.tile(self.rule(asking, places), (group, 1))[None]
        scores = jnp.where(seen, scores * scale, MASKED)
        higher = jnp.maximum(top, scores.max(axis=-1, keepdims=True))
        weights = jnp.where(seen, power_of_two(jnp.maximum(scores - higher, -127.0)), 0.0)
        shrink = jnp.exp2(jnp.maximum(top - higher, -200.0))
        values = jnp.einsum(
            "hqk,khd->hqd", weights.astype(v.dtype), v, precision=exact, preferred_element_type=jnp.float32
        )
        return higher, total * shrink + weights.sum(axis=-1, keepdims=True), out * shrink + values
