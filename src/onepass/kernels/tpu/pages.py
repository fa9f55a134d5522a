"""Pages of the pool as a TPU holds them, and the kernel that writes a step's context tokens into them in place.

XLA lays the pool out without waste, and a kernel must take it as it lies, else XLA copies all of it. How it lies
follows from its shape (`Order`); `ordered` names the axes in that order and costs nothing. Tokens' keys are written in
runs, each of which is a part of one page:

    TOKENS           for run: copy k[token : token + length] → pool[layer, page, offset :], from memory to memory
    ROWS, COLUMNS    a token is less than the copy engine can address: page in, tokens rolled into place, page out

Traffic: TOKENS the keys and values once; the others the written pages twice and the tokens once.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Int

from onepass.attention.base import KvPool

LANES = 128
RUNS_IN_FLIGHT = 8


class Order(Enum):
    """Which axis of a page is its tokens, when its axes are named as they lie."""

    TOKENS = 0  # tokens, kv_heads, head_dim
    ROWS = 1  # kv_heads, tokens, head_dim: of one head alone, tokens are the rows of memory's tiles
    COLUMNS = 2  # kv_heads, head_dim, tokens: heads narrower than memory's tiles

    @classmethod
    def of(cls, kv_heads: int, head_dim: int) -> "Order":
        if head_dim % LANES:
            return cls.COLUMNS
        return cls.ROWS if kv_heads == 1 else cls.TOKENS

    def of_tokens(self, some: Any) -> tuple[Any, ...]:
        """The index of some tokens of a page, or of a step's own keys."""
        return (slice(None),) * self.value + (some,)


def ordered(a: Array, order: Order) -> Array:
    """[..., tokens, kv_heads, head_dim] with its axes as they lie."""
    return jnp.moveaxis(a, -3, order.value - 3)


def logical(a: Array, order: Order) -> Array:
    """The inverse of `ordered`."""
    return jnp.moveaxis(a, order.value - 3, -3)


def by_head(page: Any, order: Order) -> Array:
    """A page on the chip as [kv_heads, tokens, head_dim], or [kv_heads, head_dim, tokens] of COLUMNS."""
    return jnp.swapaxes(page[...], 0, 1) if order is Order.TOKENS else page[...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Runs:
    """Tokens that follow each other in the step and in one page."""

    token: Int[Array, " runs"]
    page: Int[Array, " runs"]
    offset: Int[Array, " runs"]
    length: Int[Array, " runs"]
    count: Int[Array, ""]


def runs(slots: Int[Array, " tokens"], page: int, most: int) -> Runs:
    """Of a step's slots. A page is written by one run, so there are no more than the page table has entries."""
    number, nowhere = jnp.arange(slots.shape[0], dtype=jnp.int32), jnp.full(1, -2, jnp.int32)
    before, after = jnp.concatenate([nowhere, slots[:-1]]), jnp.concatenate([slots[1:], nowhere])
    begins = (slots >= 0) & ((slots != before + 1) | (slots % page == 0))
    ends = (slots >= 0) & ((after != slots + 1) | (after % page == 0))
    # Sorted, those that are there come first; begins and ends have the same order.
    token, last = (jnp.sort(jnp.where(here, number, slots.shape[0]))[:most] for here in (begins, ends))
    slot = slots[jnp.minimum(token, slots.shape[0] - 1)]
    count = jnp.minimum(begins.sum(dtype=jnp.int32), token.shape[0])
    return Runs(token, slot // page, slot % page, last - token + 1, count)


def write_pages(pool: KvPool, layer: Array, k: Array, v: Array, found: Runs, interpret: Any = False) -> KvPool:
    """The pool with the runs' keys and values, in place."""
    _, _, page, kv_heads, head_dim = pool.k.shape
    order = Order.of(kv_heads, head_dim)
    k, v = (ordered(a.astype(pool.k.dtype), order) for a in (k, v))
    kernel, scratch = _copy_runs, [pltpu.SemaphoreType.DMA((RUNS_IN_FLIGHT,))]
    if order is not Order.TOKENS:
        kernel = functools.partial(_merge_runs, order)
        spare = [(0, page if axis == order.value else 0) for axis in range(3)]
        k, v = (jnp.pad(a, spare) for a in (k, v))
        scratch = _Merge.scratch(order, page, kv_heads, head_dim, pool.k.dtype)
    scalars = [jnp.stack([layer, found.count]), found.token, found.page, found.offset, found.length]
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    kept = [ordered(a, order) for a in (pool.k, pool.v)]
    written = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(1,),
            in_specs=[anywhere] * 4,
            out_specs=[anywhere] * 2,
            scratch_shapes=scratch,
        ),
        out_shape=[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in kept],
        input_output_aliases={len(scalars) + 2: 0, len(scalars) + 3: 1},
        compiler_params=pltpu.CompilerParams(has_side_effects=True),
        interpret=interpret,
        name="write_pages",
    )(*scalars, k, v, *kept)
    return KvPool(*(logical(a, order) for a in written))


def _copy_runs(*refs: Any) -> None:
    numbers, token, page, offset, length, k, v = refs[:7]
    pool_k, pool_v, arrived = refs[9:]  # 7 and 8 are the same pool as an input
    layer, count, size = numbers[0], numbers[1], pool_k.shape[2]

    def each_copy(run: Array, do: Callable[[Any], None]) -> None:
        """A copy's size is fixed, so a run is copied in powers of two."""
        done = jnp.int32(0)
        for part in (size >> n for n in range(size.bit_length())):
            here = (length[run] & part) != 0

            @pl.when(here)
            def _(part: int = part, done: Array = done) -> None:
                for source, pool in ((k, pool_k), (v, pool_v)):
                    some = source.at[pl.ds(token[run] + done, part)]
                    to = pool.at[layer, page[run], pl.ds(offset[run] + done, part)]
                    do(pltpu.make_async_copy(some, to, arrived.at[run & (RUNS_IN_FLIGHT - 1)]))

            done += jnp.where(here, part, 0)

    def turn(run: Array, _: None) -> None:
        pl.when(run >= RUNS_IN_FLIGHT)(lambda: each_copy(run - RUNS_IN_FLIGHT, lambda copy: copy.wait()))
        pl.when(run < count)(lambda: each_copy(run, lambda copy: copy.start()))

    jax.lax.fori_loop(0, jnp.where(count > 0, count + RUNS_IN_FLIGHT, 0), turn, None)


def _merge_runs(order: Order, *refs: Any) -> None:
    numbers, token, page, offset, length, k, v = refs[:7]
    pool_k, pool_v, *scratch = refs[9:]  # 7 and 8 are the same pool as an input
    merges = [_Merge(order, k, pool_k, *scratch[:4]), _Merge(order, v, pool_v, *scratch[4:])]
    layer, count = numbers[0], numbers[1]

    def begin(run: Array) -> None:
        for merge in merges:
            for copy in merge.coming(run, layer, page[run], token[run]):
                copy.start()

    def turn(run: Array, _: None) -> None:
        for merge in merges:
            pl.when(run > 0)(merge.going(run - 1, layer, page[jnp.maximum(run - 1, 0)]).wait)
        pl.when(run + 1 < count)(lambda: begin(run + 1))
        for merge in merges:
            for copy in merge.coming(run, layer, page[run], token[run]):
                copy.wait()
            merge.merge(run, token[run], offset[run], length[run])
            merge.going(run, layer, page[run]).start()

    @pl.when(count > 0)
    def _() -> None:
        begin(jnp.int32(0))
        jax.lax.fori_loop(0, count, turn, None)
        for merge in merges:
            merge.going(count - 1, layer, page[count - 1]).wait()


@dataclass(frozen=True)
class _Merge:
    """Pages of the pool on the chip, two at a time, and the tokens that go into them, which begin at a whole tile."""

    order: Order
    source: Any
    pool: Any
    page: Any
    window: Any
    arrived: Any
    left: Any

    @staticmethod
    def scratch(order: Order, page: int, kv_heads: int, head_dim: int, dtype: Any) -> list[Any]:
        kept = [kv_heads, head_dim]
        sizes = [(2, *kept[: order.value], tokens, *kept[order.value :]) for tokens in (page, 2 * page)]
        semaphores = pltpu.SemaphoreType.DMA((2,))
        return [*(pltpu.VMEM(size, dtype) for size in sizes), semaphores, semaphores] * 2

    @property
    def size(self) -> int:
        return self.page.shape[1 + self.order.value]

    def coming(self, run: Array, layer: Array, number: Array, token: Array) -> list[Any]:
        at, tile = run & 1, pl.multiple_of(token & -self.size, self.size)
        tokens = self.source.at[self.order.of_tokens(pl.ds(tile, 2 * self.size))]
        return [
            pltpu.make_async_copy(self.pool.at[layer, number], self.page.at[at], self.arrived.at[at]),
            pltpu.make_async_copy(tokens, self.window.at[at], self.arrived.at[at]),
        ]

    def going(self, run: Array, layer: Array, number: Array) -> Any:
        at = run & 1
        return pltpu.make_async_copy(self.page.at[at], self.pool.at[layer, number], self.left.at[at])

    def merge(self, run: Array, token: Array, offset: Array, length: Array) -> None:
        at, size = run & 1, self.size
        shift = (offset - (token & (size - 1))) & (2 * size - 1)
        axis = 0 if self.order is Order.ROWS else 1
        for head in range(self.page.shape[1]):
            moved = pltpu.roll(self.window[at, head].astype(jnp.float32), shift, axis)
            moved = jax.lax.slice_in_dim(moved, 0, size, axis=axis)
            within = jax.lax.broadcasted_iota(jnp.int32, moved.shape, axis)
            new = (within >= offset) & (within < offset + length)
            old = self.page[at, head].astype(jnp.float32)
            self.page[at, head] = jnp.where(new, moved, old).astype(self.page.dtype)
