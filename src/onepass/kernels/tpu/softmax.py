"""Online softmax of a block of asking tokens on a TPU core: highest score, sum of weights and weighted values so far.

State, float32, [heads, tokens, lanes] each: the highest score (the same in all lanes), the sum (of every 128th key;
lanes are added up at the end) and the weighted values. In base 2, the exponential that the chip has. A token whose keys
so far are all masked gathers weights of 1, which the first key it sees scales to 0; only padding never sees any.

Which keys are added, and under which mask, is left to `attention`.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float

from onepass.attention.base import precision
from onepass.attention.reference import MASKED

LANES = 128
HEADS_IN_FLIGHT = 4  # with fewer, the chip's units wait for each other


@dataclass(frozen=True)
class HeadShape:
    """Heads of one device."""

    kv_heads: int
    group: int
    head_dim: int

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def together(self) -> int:
        """KV heads a turn: enough that the products of one head overlap the exponentials of another."""
        fitting = (n for n in range(1, self.kv_heads) if self.kv_heads % n == 0 and n * self.group >= HEADS_IN_FLIGHT)
        return next(fitting, self.kv_heads)


@dataclass(frozen=True)
class Keys:
    """Keys and values on the chip, [kv_heads, keys, head_dim], or [kv_heads, head_dim, keys] where they are columns."""

    k: Any
    v: Any
    columns: bool
    some: Any  # which of the keys

    def of(self, ref: Any, kv_head: Array) -> Array:
        return ref[kv_head, :, self.some] if self.columns else ref[kv_head, self.some]


@dataclass(frozen=True)
class Unit:
    """Heads of a group whose scores are one product."""

    kv_head: Array
    first: Array  # among all heads
    count: int


@dataclass(frozen=True)
class Softmax:
    """The running softmax of a block; fields are references into the chip's memory."""

    shape: HeadShape
    q: Any
    top: Any
    total: Any
    weighted: Any

    @staticmethod
    def scratch(shape: HeadShape, block: int, dtype: jnp.dtype) -> list[Any]:
        """What the fields need, in their order."""
        stats = pltpu.VMEM((shape.heads, block, LANES), jnp.float32)
        values = (shape.heads, block, shape.head_dim)
        return [pltpu.VMEM(values, dtype), stats, stats, pltpu.VMEM(values, jnp.float32)]

    def begin(self, q: Any) -> None:
        for head in range(self.shape.heads):
            self.q[head] = q[:, self._columns(head)].astype(self.q.dtype)
        self.top[...] = jnp.full_like(self.top, MASKED)
        self.total[...] = jnp.zeros_like(self.total)
        self.weighted[...] = jnp.zeros_like(self.weighted)

    def add(self, keys: Keys, rows: Any, seen: list[Bool[Array, "rows lanes"]] | None) -> None:
        """Some keys for some rows of the block, all heads; a mask for every 128 keys. Without masks a head is a
        unit; with them, tiles are small, and the heads of a group, which meet the same keys, are one product."""
        together, group = self.shape.together, self.shape.group

        def turn(n: Array, _: None) -> None:
            units = []
            for kv_head in (n * together + i for i in range(together)):
                first = kv_head * group
                apart = [Unit(kv_head, first + g, 1) for g in range(group)]
                units += apart if seen is None else [Unit(kv_head, first, group)]
            self._add(units, keys, rows, seen)

        jax.lax.fori_loop(0, self.shape.kv_heads // together, turn, None)

    def _add(self, units: list[Unit], keys: Keys, rows: Any, seen: list[Array] | None) -> None:
        """A pipeline over units, since the compiler keeps to this order: products for the next one's scores, products
        of the last one's weights, exponentials of this one."""
        following, last = self._scores(units[0], keys, rows, seen), None
        for number, unit in enumerate(units):
            scores = following
            if number + 1 < len(units):
                following = self._scores(units[number + 1], keys, rows, seen)
            if last is not None:
                self._add_values(units[number - 1], keys, rows, *last)
            last = self._weights(unit, rows, scores, self.q.dtype)
        assert last is not None
        self._add_values(units[-1], keys, rows, *last)

    def _scores(self, unit: Unit, keys: Keys, rows: Any, seen: list[Array] | None) -> Array:
        scores = _dot(self._load(self.q, unit, rows), keys.of(keys.k, unit.kv_head), 0 if keys.columns else 1)
        if seen is None:
            return scores
        parts = scores.reshape(unit.count, -1, scores.shape[1])

        def masked(part: Array) -> Array:
            tiles = [jnp.where(mask, part[:, n * LANES :][:, :LANES], MASKED) for n, mask in enumerate(seen)]
            return jnp.concatenate(tiles, axis=1)

        return jnp.concatenate([masked(part) for part in parts])

    def _weights(self, unit: Unit, rows: Any, scores: Array, dtype: Any) -> tuple[Array, Array]:
        """By how much the sums so far shrink, and the tile's weights."""
        scale = self.shape.head_dim**-0.5 * math.log2(math.e)
        top = self._load(self.top, unit, rows)
        higher = jnp.maximum(top, jnp.max(scores, axis=1, keepdims=True))
        parts = [jnp.exp2((scores[:, at : at + LANES] - higher) * scale) for at in range(0, scores.shape[1], LANES)]
        shrink = jnp.exp2((top - higher) * scale)
        self._store(self.top, unit, rows, higher)
        self._store(self.total, unit, rows, self._load(self.total, unit, rows) * shrink + sum(parts[1:], parts[0]))
        return shrink, jnp.concatenate([part.astype(dtype) for part in parts], axis=1)

    def _add_values(self, unit: Unit, keys: Keys, rows: Any, shrink: Array, weights: Array) -> None:
        added = _dot(weights, keys.of(keys.v, unit.kv_head), 1 if keys.columns else 0)
        before = self._load(self.weighted, unit, rows)
        self._store(self.weighted, unit, rows, before * _spread(shrink, self.shape.head_dim) + added)

    def finish(self, out: Any, real: Bool[Array, "block 1"]) -> None:
        """The weighted means; 0 for padding."""
        for head in range(self.shape.heads):
            total = jnp.sum(self.total[head], axis=1, keepdims=True)
            mean = self.weighted[head] / jnp.where(total > 0, total, 1.0)
            out[:, self._columns(head)] = jnp.where(real, mean, 0.0).astype(out.dtype)

    def _columns(self, head: int) -> slice:
        return slice(head * self.shape.head_dim, (head + 1) * self.shape.head_dim)

    def _load(self, ref: Any, unit: Unit, rows: Any) -> Array:
        return ref[pl.ds(unit.first, unit.count), rows].reshape(-1, ref.shape[-1])

    def _store(self, ref: Any, unit: Unit, rows: Any, value: Array) -> None:
        ref[pl.ds(unit.first, unit.count), rows] = value.reshape(unit.count, -1, ref.shape[-1])


def _dot(a: Array, b: Array, over: int) -> Array:
    """a · b over a's last axis and axis `over` of b, accumulated in float32."""
    return jax.lax.dot_general(
        a, b, (((1,), (over,)), ((), ())), precision=precision(a.dtype), preferred_element_type=jnp.float32
    )


def _spread(a: Float[Array, "rows lanes"], width: int) -> Float[Array, "rows width"]:
    """As many columns as wanted of an array whose columns are all the same."""
    return a[:, :width] if width <= a.shape[1] else jnp.tile(a, (1, width // a.shape[1]))
