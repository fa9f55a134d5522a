"""x times two tiles of weights at once, for every tile of tokens and pair of tiles, on Hopper GPUs (Mosaic GPU).

Programs run on pairs of multiprocessors that share every tile of weights, each with tokens of its own; or, where tokens
are few, every tile of tokens, each with weights of its own. On each, one warpgroup copies tiles by TMA, and two
compute, each 64 tokens by 128 columns of both tiles; or of one, where the last round leaves most programs without work.
Tiles beyond the last real token (`count`, read from memory) are not computed; what depends on how many tokens there
can be, the number of a step's arrays, is decided before. Which tiles of weights are multiplied together, and what is
done with the sums, is the caller's.
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

ROWS = 64  # tokens of a warpgroup
COLUMNS = 128  # of a tile of weights; fewer where that leaves multiprocessors without work
DEPTH_BYTES = 128  # of a step
STAGED_PART = 32  # columns that `epilogue` may write at a time
FEW_TOKENS = 1024  # that a step can have
SHARED_BYTES = 192 << 10  # for the steps under way
WARPGROUPS = 2
TOGETHER = 2  # multiprocessors that share tiles
NEAR = 4  # pairs of tiles of tokens that meet all weights before the next; 4, 8 and 16 tried
TOKENS = WARPGROUPS * ROWS  # of a multiprocessor
REGISTERS, COPYING_REGISTERS = 232, 40


@dataclass(frozen=True)
class Gemm:
    """`tile(refs, which, across)` is the first or second [COLUMNS, size] of the weights of a pair.
    `epilogue(refs, staged, sums, early, token, across)` writes what comes of both tiles' sums through `staged`, [ROWS,
    columns] of shared memory; of each tile's by itself, with its number in place of the pair's, where tiles stand
    `apart`. `early` is what `begin(refs, token)` made of the tokens before the sums were computed."""

    name: str
    pairs: int
    tile: Callable[..., Any]
    epilogue: Callable[..., None]
    multiprocessors: int
    staged: Any  # dtype
    interpret: Any = False
    columns: int = COLUMNS
    begin: Callable[..., Any] = lambda *_: None
    apart: bool = False

    def run(self, x: Float[Array, "tokens size"], count: Int[Array, ""], given: tuple[Array, ...], out: Any) -> Any:
        depth, stages, part = depth_of(x.dtype), self.stages, min(STAGED_PART, self.columns)
        kernel = plgpu.kernel(
            self._kernel,
            out_type=out,
            scratch_types={
                "x_smem": swizzled((stages, TOKENS, depth), x.dtype),
                "first_smem": swizzled((stages, self.columns, depth), x.dtype),
                "second_smem": swizzled((stages, self.columns, depth), x.dtype),
                "staged": swizzled((WARPGROUPS, ROWS, self.columns), self.staged, part),
                "full": plgpu.Barrier(num_arrivals=3, num_barriers=stages),
                "empty": plgpu.ClusterBarrier(collective_axes=("pair",), num_arrivals=WARPGROUPS, num_barriers=stages),
            },
            grid=(self.multiprocessors // TOGETHER,),
            grid_names=("program",),
            cluster=(TOGETHER,),
            cluster_names=("pair",),
            num_threads=WARPGROUPS + 1,
            thread_name="warpgroup",
            compiler_params=plgpu.CompilerParams(approx_math=True),
            interpret=self.interpret or None,
            kernel_name=self.name,
        )
        return kernel(count.astype(jnp.int32).reshape(1), x, *given)

    def share_tokens(self, tokens: int) -> bool:
        """Weights are more than tokens, unless these are many; and two multiprocessors must have work of a kind."""
        few = tokens <= FEW_TOKENS and self.pairs % TOGETHER == 0
        return few or tokens % (TOGETHER * TOKENS) != 0

    @property
    def stages(self) -> int:
        return SHARED_BYTES // ((TOKENS + 2 * self.columns) * DEPTH_BYTES)

    def _kernel(self, count, x, *refs, **shared) -> None:
        # Tiles of tokens that are shared; or pairs of them, of which each of two multiprocessors takes one.
        tokens = TOKENS if self.share_tokens(x.shape[0]) else TOGETHER * TOKENS
        down = (count[0] + tokens - 1) // tokens
        warpgroup, work = lax.axis_index("warpgroup"), _Work(self, down, x, refs, **shared)
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
    first_smem: Any
    second_smem: Any
    staged: Any
    full: Any
    empty: Any

    @property
    def programs(self) -> int:
        return self.gemm.multiprocessors // TOGETHER

    @property
    def steps(self) -> int:
        return self.x.shape[1] // depth_of(self.x.dtype)

    @property
    def shares_tokens(self) -> bool:
        return self.gemm.share_tokens(self.x.shape[0])

    def for_each(self, take, count):
        """`take(token, across, which, count)` for all that falls to this program; `which` None is both tiles."""
        program, programs, pairs = lax.axis_index("program"), self.programs, self.gemm.pairs
        units = self.down * (pairs // TOGETHER if self.shares_tokens else pairs)
        whole, halves = rounds(units, programs, self.gemm.apart)
        if not self.only_halves:
            mine = jnp.maximum((whole - program + programs - 1) // programs, 0)
            count = lax.fori_loop(0, mine, lambda n, c: take(*self.place(program + n * programs), None, c), count)
        if self.gemm.apart:
            half = (*self.place(whole + program // 2), program % 2)
            count = lax.fori_loop(0, (program < halves).astype(jnp.int32), lambda _, c: take(*half, c), count)
        return count

    @property
    def only_halves(self) -> bool:
        """Whether even a step without padding has no round of whole units: less to compile."""
        most = self.x.shape[0] // TOKENS * self.gemm.pairs // TOGETHER
        return self.gemm.apart and 2 * most <= self.programs

    def place(self, number):
        """First token and pair of tiles. A few tokens meet all weights, then the next: both come from the cache."""
        half = lax.axis_index("pair")
        if self.shares_tokens:
            down = jnp.maximum(self.down, 1)
            return (number % down) * TOKENS, TOGETHER * (number // down) + half
        pair, across = place_of(number, self.down, self.gemm.pairs)
        return (TOGETHER * pair + half) * TOKENS, across

    def copy(self) -> None:
        plgpu.set_max_registers(COPYING_REGISTERS, action="decrease")
        count, stages = self.for_each(self.copy_tiles, jnp.int32(0)), self.gemm.stages

        @pl.loop(jnp.maximum(count - stages, 0), count)
        def _until_all_are_used(number):
            plgpu.barrier_wait(self.empty.at[number % stages])

    def copy_tiles(self, token, across, which, count):
        depth, stages, columns = depth_of(self.x.dtype), self.gemm.stages, self.gemm.columns
        tokens_for, weights_for = ("pair", None) if self.shares_tokens else (None, "pair")

        def weights(slot):
            """Two copies, as their barrier waits for: of two tiles, or of the halves of one."""
            if which is None:
                targets = (self.first_smem, self.second_smem)
                return [(self.gemm.tile(self.refs, n, across), targets[n].at[slot]) for n in range(2)]
            tile, halves = self.gemm.tile(self.refs, which, across), (0, columns // 2)
            return [(tile.at[pl.ds(n, columns // 2)], self.first_smem.at[slot, pl.ds(n, columns // 2)]) for n in halves]

        def copy_step(step, count):
            slot = count % stages
            terms = pl.ds(step * depth, depth)
            pl.when(count >= stages)(lambda: plgpu.barrier_wait(self.empty.at[slot]))
            some = self.x.at[pl.ds(token, TOKENS), terms]
            plgpu.copy_gmem_to_smem(some, self.x_smem.at[slot], self.full.at[slot], collective_axes=tokens_for)
            for source, target in weights(slot):
                plgpu.copy_gmem_to_smem(source.at[:, terms], target, self.full.at[slot], collective_axes=weights_for)
            return count + 1

        return lax.fori_loop(0, self.steps, copy_step, count)

    def compute(self) -> None:
        plgpu.set_max_registers(REGISTERS, action="increase")
        self.for_each(self.compute_tiles, jnp.int32(0))
        plgpu.wait_smem_to_gmem(0)

    def compute_tiles(self, token, across, which, count):
        gemm, stages, warpgroup = self.gemm, self.gemm.stages, lax.axis_index("warpgroup")
        tiles = (self.first_smem, self.second_smem)[: 2 if which is None else 1]
        rows, token = pl.ds(warpgroup * ROWS, ROWS), token + warpgroup * ROWS
        early = gemm.begin(self.refs, token)

        def products(*sums_refs):
            def step(number, last):
                slot = (count + number) % stages
                plgpu.barrier_wait(self.full.at[slot])
                for sums, weights in zip(sums_refs, tiles, strict=True):
                    plgpu.wgmma(sums, self.x_smem.at[slot, rows], weights.at[slot].transpose((1, 0)))
                plgpu.wgmma_wait(len(tiles))  # those of the step before are done
                pl.when(number > 0)(lambda: plgpu.barrier_arrive(self.empty.at[last]))
                return slot

            last = lax.fori_loop(0, self.steps, step, jnp.int32(0))
            sums = tuple(ref[...] for ref in sums_refs)
            plgpu.barrier_arrive(self.empty.at[last])
            return sums

        accumulator = plgpu.ACC((ROWS, gemm.columns), jnp.float32)
        sums = pl.run_scoped(products, *[accumulator] * len(tiles))
        staged = self.staged.at[warpgroup]
        if gemm.apart:
            for n, one in enumerate(sums):
                gemm.epilogue(self.refs, staged, one, early, token, 2 * across + (n if which is None else which))
        else:
            gemm.epilogue(self.refs, staged, sums, early, token, across)
        return count + self.steps


def rounds(units: Any, programs: int, apart: bool) -> tuple[Any, Any]:
    """How many units of work are done whole, and how many halves follow. A last round of less than half of the programs
    is one of halves instead."""
    rest = units % programs
    halves = jnp.where(2 * rest <= programs, 2 * rest, 0) if apart else 0
    return units - halves // 2, halves


def place_of(number: Any, down: Any, pairs: int) -> tuple[Any, Any]:
    """Which pair of tiles of tokens, of `down`, meets which pair of tiles of weights, as the number-th."""
    group, within = number // (NEAR * pairs), number % (NEAR * pairs)
    wide = jnp.clip(down - group * NEAR, 1, NEAR)
    return group * NEAR + within % wide, within // wide


def whole_tiles(tokens: int, pairs: int) -> bool:
    """Whether so many tokens and pairs of tiles can be shared out to pairs of multiprocessors."""
    return tokens % TOKENS == 0 and (tokens // TOKENS % TOGETHER == 0 or pairs % TOGETHER == 0)


def depth_of(dtype: Any) -> int:
    """Terms of a step."""
    return DEPTH_BYTES // jnp.dtype(dtype).itemsize
