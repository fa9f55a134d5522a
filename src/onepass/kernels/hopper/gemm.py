"""x times two tiles of weights at once, for every tile of tokens and pair of tiles, on Hopper GPUs (Mosaic GPU).

Programs run on pairs of multiprocessors that share every tile of weights, each with tokens of its own; or, where tokens
are few, every tile of tokens, each with weights of its own; or `halves` of the terms of the same tiles, which they
`exchange` at the end. On each, one warpgroup copies tiles by TMA, and two compute, each 64 tokens by 128 columns of
both tiles, side by side; or by a part of these, where the last round would leave most programs without work. Tiles
beyond the last real token (`count`, read from memory) are not computed; what depends on how many tokens there can be,
the number of a step's arrays, is decided before. Which tiles of weights are multiplied together, and what is done with
the sums, is the caller's.
"""

# mypy: disable-error-code="no-untyped-def"

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from onepass.kernels.hopper.attention import swizzled
from onepass.kernels.hopper.exchange import Exchange, exchange_bytes, exchange_mailbox, exchange_scratch
from onepass.kernels.hopper.late_tiles import LateSource, LateTiles, late_memory
from onepass.kernels.hopper.launch_order import let_next_begin, wait_for_last
from onepass.kernels.hopper.tiles import (
    COLUMNS,
    DEPTH_BYTES,
    ROWS,
    SHARED_BYTES,
    STAGED_PART,
    TOGETHER,
    TOKENS,
    WARPGROUPS,
    depth_of,
    place_of,
    rounds,
    shares_tokens,
)

REGISTERS, COPYING_REGISTERS = 232, 40


@dataclass(frozen=True)
class Gemm:
    """`tile(refs, which, across, columns)` is the first or second [columns, size] of the weights of the pair `across`,
    where all pairs have tiles of so many columns: as many as these have, or a part of them.
    `epilogue(refs, staged, sums, early, late, token, across)` writes what comes of both tiles' sums, side by side,
    through `staged`, [parts, ROWS, columns of a part] of shared memory. `early` is what `begin(refs, token, across,
    columns)` loaded before the sums were computed, and `late` what was copied meanwhile. `weights_first`: they are
    copied before the kernel ahead has ended, which must not be one that writes `count` or the layer's number
    (`launch_order`)."""

    name: str
    pairs: int
    tile: Callable[..., Any]
    epilogue: Callable[..., None]
    multiprocessors: int
    staged: Any  # dtype
    interpret: Any = False
    columns: int = COLUMNS
    begin: Callable[..., Any] = lambda *_: None
    late: LateSource | None = None
    parts: int = 2  # of a pair of tiles, in the last round
    weights_first: bool = False
    halves: bool = False  # of the terms, to each of two multiprocessors: for a few tokens; `across` is a tile then

    def run(self, x: Float[Array, "tokens size"], count: Int[Array, ""], given: tuple[Array, ...], out: Any) -> Any:
        depth, stages, part = depth_of(x.dtype), self.stages, min(STAGED_PART, self.columns)
        whose: dict[str, Any] = {"num_arrivals": WARPGROUPS, "num_barriers": stages}
        empty = plgpu.Barrier(**whose) if self.halves else plgpu.ClusterBarrier(collective_axes=("member",), **whose)
        more = exchange_scratch(WARPGROUPS, ROWS, self.columns, self.interpret) if self.halves else {}
        weights: Any = swizzled((stages, 2 * self.columns, depth), x.dtype)
        if self.late is not None:
            weights = plgpu.RefUnion(weights, late_memory(stages))
        mailbox = exchange_mailbox(x.shape[0], 2 * self.pairs * self.columns, self.halves and self.interpret)
        kernel = plgpu.kernel(
            self._kernel,
            out_type=(*out, *mailbox) if mailbox else out,
            scratch_types={
                "x_smem": swizzled((stages, TOKENS, depth), x.dtype),
                "weights_smem": weights,
                "staged": swizzled((WARPGROUPS, self.columns // part, ROWS, part), self.staged),
                "full": plgpu.Barrier(num_arrivals=3, num_barriers=stages),
                "empty": empty,
                **more,
            },
            grid=(self.multiprocessors // TOGETHER,),
            grid_names=("program",),
            cluster=(TOGETHER,),
            cluster_names=("member",),
            num_threads=WARPGROUPS + 1,
            thread_name="warpgroup",
            compiler_params=plgpu.CompilerParams(approx_math=True),
            interpret=self.interpret or None,
            kernel_name=self.name,
        )
        results = kernel(count.astype(jnp.int32).reshape(1), x, *given)
        return results[:-1] if mailbox else results

    @property
    def stages(self) -> int:
        room = SHARED_BYTES - (exchange_bytes(WARPGROUPS, ROWS, self.columns) if self.halves else 0)
        return room // ((TOKENS + 2 * self.columns) * DEPTH_BYTES)

    def _kernel(self, count, x, *refs, x_smem, weights_smem, staged, full, empty, **more) -> None:
        if not self.weights_first:
            wait_for_last(self.interpret)
        # Tiles of tokens that are shared; or pairs of them, of which each of two multiprocessors takes one.
        tokens = TOKENS if shares_tokens(x.shape[0], self.pairs) else TOGETHER * TOKENS
        down = (count[0] + tokens - 1) // tokens
        exchange = late_smem = None
        if self.late is not None:
            weights_smem, late_smem = weights_smem
        if self.halves:
            mailbox, refs = (refs[-1], refs[:-1]) if self.interpret else (None, refs)
            exchange = Exchange(**more, mailbox=mailbox)
        work = _Work(self, down, x, refs, x_smem, weights_smem, late_smem, staged, full, empty, exchange)
        warpgroup = lax.axis_index("warpgroup")
        pl.when(warpgroup == WARPGROUPS)(work.copy)
        pl.when(warpgroup < WARPGROUPS)(work.compute)


@dataclass(frozen=True)
class _Work:
    """What a multiprocessor does, as its warpgroups see it."""

    gemm: Gemm
    down: Any
    x: Any
    refs: tuple[Any, ...]
    x_smem: Any
    weights_smem: Any
    late_smem: Any
    staged: Any
    full: Any
    empty: Any
    exchange: Exchange | None

    @property
    def programs(self) -> int:
        return self.gemm.multiprocessors // TOGETHER

    @property
    def steps(self) -> int:
        return self.x.shape[1] // depth_of(self.x.dtype) // (TOGETHER if self.gemm.halves else 1)

    @property
    def shares_tokens(self) -> bool:
        return shares_tokens(self.x.shape[0], self.gemm.pairs)

    def for_each(self, take, count):
        """`take(token, across, columns, count)` for all that falls to this program, of tiles of so many columns."""
        program, programs, parts = lax.axis_index("program"), self.programs, self.gemm.parts
        columns, pairs = self.gemm.columns, self.gemm.pairs
        units = self.down * (pairs // TOGETHER if self.shares_tokens and not self.gemm.halves else pairs)
        whole, rest = rounds(units, programs, parts)

        def mine(units):
            return jnp.maximum((units - program + programs - 1) // programs, 0)

        def take_whole(n, count):
            return take(*self.place(program + n * programs), columns, count)

        def take_part(n, count):
            number = program + n * programs
            token, across = self.place(whole + number // parts)
            return take(token, across * parts + number % parts, columns // parts, count)

        if not self.only_parts:
            count = lax.fori_loop(0, mine(whole), take_whole, count)
        return count if parts == 1 else lax.fori_loop(0, mine(rest), take_part, count)

    @property
    def only_parts(self) -> bool:
        """Whether even a step without padding has no round of whole units: less to compile."""
        most = self.x.shape[0] // TOKENS * self.gemm.pairs // TOGETHER
        return self.gemm.parts * most <= self.gemm.parts // 2 * self.programs

    def place(self, number):
        """First token and pair of tiles. A few tokens meet all weights, then the next: both come from the cache."""
        member = lax.axis_index("member")
        if self.shares_tokens:
            down = jnp.maximum(self.down, 1)
            if self.gemm.halves:
                return (number % down) * TOKENS, number // down
            return (number % down) * TOKENS, TOGETHER * (number // down) + member
        pair, across = place_of(number, self.down, self.gemm.pairs)
        return (TOGETHER * pair + member) * TOKENS, across

    def copy(self) -> None:
        plgpu.set_max_registers(COPYING_REGISTERS, action="decrease")
        count, stages = self.for_each(self.copy_tiles, jnp.int32(0)), self.gemm.stages

        @pl.loop(jnp.maximum(count - stages, 0), count)
        def _until_all_are_used(number):
            plgpu.barrier_wait(self.empty.at[number % stages])

    def copy_tiles(self, token, across, columns, count):
        depth, stages = depth_of(self.x.dtype), self.gemm.stages
        tokens_for, weights_for = ("member", None) if self.shares_tokens else (None, "member")
        first: Any = 0
        if self.gemm.halves:
            tokens_for, first = None, lax.axis_index("member") * self.steps

        def copy_tokens(step, slot) -> None:
            some = self.x.at[pl.ds(token, TOKENS), pl.ds((first + step) * depth, depth)]
            plgpu.copy_gmem_to_smem(some, self.x_smem.at[slot], self.full.at[slot], collective_axes=tokens_for)

        def copy_weights(step, slot) -> None:
            terms = pl.ds((first + step) * depth, depth)
            for which in range(2):
                source = self.gemm.tile(self.refs, which, across, columns).at[:, terms]
                target = self.weights_smem.at[slot, pl.ds(which * columns, columns)]
                plgpu.copy_gmem_to_smem(source, target, self.full.at[slot], collective_axes=weights_for)

        def copy_step(step, count):
            slot = count % stages
            pl.when(count >= stages)(lambda: plgpu.barrier_wait(self.empty.at[slot]))
            copy_tokens(step, slot)
            copy_weights(step, slot)
            return count + 1

        def copy_all(begun, count):
            count = lax.fori_loop(begun, self.steps, copy_step, count)
            return count if self.gemm.late is None else self.copy_late(self.gemm.late, token, across, columns, count)

        if not self.gemm.weights_first:
            return copy_all(0, count)
        some = min(stages, self.steps)

        @pl.when(count == 0)
        def _weights_first() -> None:
            pl.loop(0, some)(lambda step: copy_weights(step, step))
            wait_for_last(self.gemm.interpret)
            pl.loop(0, some)(lambda step: copy_tokens(step, step))

        begun = jnp.where(count == 0, some, 0)
        return copy_all(begun, count + begun)

    def copy_late(self, late: LateSource, token, across, columns, count):
        def copy_step(step, count):
            slot = count % self.gemm.stages
            pl.when(count >= self.gemm.stages)(lambda: plgpu.barrier_wait(self.empty.at[slot]))
            late.copy(self.refs, token, across, columns, step, self.late_smem.at[slot], self.full.at[slot])
            return count + 1

        return lax.fori_loop(0, late.steps(columns), copy_step, count)

    def compute(self) -> None:
        plgpu.set_max_registers(REGISTERS, action="increase")
        if self.gemm.weights_first:
            wait_for_last(self.gemm.interpret)
        let_next_begin(self.gemm.interpret)
        count = self.for_each(self.compute_tiles, jnp.int32(0))
        if self.exchange is not None:
            pl.when(count > 0)(self.exchange.wait_until_taken)
        plgpu.wait_smem_to_gmem(0)

    def compute_tiles(self, token, across, columns, count):
        gemm, stages, warpgroup = self.gemm, self.gemm.stages, lax.axis_index("warpgroup")
        rows, token = pl.ds(warpgroup * ROWS, ROWS), token + warpgroup * ROWS
        number = across if self.exchange is None else 2 * across + lax.axis_index("member")
        early = gemm.begin(self.refs, token, number, columns)

        def products(sums):
            def step(number, last):
                slot = (count + number) % stages
                plgpu.barrier_wait(self.full.at[slot])
                weights = self.weights_smem.at[slot, pl.ds(0, 2 * columns)]
                plgpu.wgmma(sums, self.x_smem.at[slot, rows], weights.transpose((1, 0)))
                plgpu.wgmma_wait(1)  # that of the step before is done
                pl.when(number > 0)(lambda: plgpu.barrier_arrive(self.empty.at[last]))
                return slot

            last = lax.fori_loop(0, self.steps, step, jnp.int32(0))
            values = sums[...]
            plgpu.barrier_arrive(self.empty.at[last])
            return values

        sums = pl.run_scoped(products, plgpu.ACC((ROWS, 2 * columns), jnp.float32))
        if self.exchange is not None:
            sums = self.exchange(sums, count > 0, pl.ds(token, ROWS), 2 * across * columns)
        count += self.steps
        late = None if gemm.late is None else LateTiles(self.late_smem, self.full, self.empty, count)
        gemm.epilogue(self.refs, self.staged.at[warpgroup], sums, early, late, token, number)
        return count if gemm.late is None else count + gemm.late.steps(columns)
