"""x times two tiles of weights at once, for every tile of tokens and pair of tiles, on Hopper GPUs (Mosaic GPU).

Programs run on pairs of multiprocessors that share every tile of weights, each with tokens of its own; or, where tokens
are few, every tile of tokens, each with weights of its own. On each, one warpgroup copies tiles by TMA, and two
compute, each 64 tokens by 128 columns of both tiles. Which tiles of weights are multiplied together, and what is done
with the sums, is the caller's.
"""

# mypy: disable-error-code="no-untyped-def"

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from onepass.attention.hopper import swizzled

ROWS = 64  # tokens of a warpgroup
COLUMNS = 128  # of a tile of weights; fewer where that leaves multiprocessors without work
DEPTH_BYTES = 128  # of a step
STAGED_PART = 32  # columns that `finish` may write at a time
FEW_TOKENS = 1024
SHARED_BYTES = 192 << 10  # for the steps under way
WARPGROUPS = 2
TOGETHER = 2  # multiprocessors that share tiles
NEAR = 4  # pairs of tiles of tokens that meet all weights before the next; 4, 8 and 16 tried
TOKENS = WARPGROUPS * ROWS  # of a multiprocessor
REGISTERS, COPYING_REGISTERS = 232, 40


@dataclass(frozen=True)
class Product:
    """`tile(refs, which, across)` is the first or second [COLUMNS, size] of the weights of a pair.
    `finish(refs, staged, first, second, early, token, across)` writes what comes of the sums through `staged`, [ROWS,
    columns] of shared memory. `early` is what `begin(refs, token)` made of the tokens before the sums were computed."""

    name: str
    pairs: int
    tile: Callable[..., Any]
    finish: Callable[..., None]
    multiprocessors: int
    staged: Any  # dtype
    interpret: Any = False
    columns: int = COLUMNS
    begin: Callable[..., Any] = lambda *_: None

    def run(self, x: Float[Array, "tokens size"], given: tuple[Array, ...], made: Any) -> Any:
        depth, stages, part = depth_of(x.dtype), self.stages, min(STAGED_PART, self.columns)
        kernel = plgpu.kernel(
            self._kernel,
            out_type=made,
            scratch_types={
                "x_smem": swizzled((stages, TOKENS, depth), x.dtype),
                "first_smem": swizzled((stages, self.columns, depth), x.dtype),
                "second_smem": swizzled((stages, self.columns, depth), x.dtype),
                "staged": swizzled((WARPGROUPS, ROWS, self.columns), self.staged, part),
                "here": plgpu.Barrier(num_arrivals=3, num_barriers=stages),
                "done": plgpu.ClusterBarrier(collective_axes=("pair",), num_arrivals=WARPGROUPS, num_barriers=stages),
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
        return kernel(x, *given)

    def share_tokens(self, tokens: int) -> bool:
        """Weights are more than tokens, unless these are many; and two multiprocessors must have work of a kind."""
        few = tokens <= FEW_TOKENS and self.pairs % TOGETHER == 0
        return few or tokens % (TOGETHER * TOKENS) != 0

    @property
    def stages(self) -> int:
        return SHARED_BYTES // ((TOKENS + 2 * self.columns) * DEPTH_BYTES)

    def _kernel(self, x, *refs, x_smem, first_smem, second_smem, staged, here, done) -> None:
        tokens, size = x.shape
        pairs_share_tokens = self.share_tokens(tokens)
        depth, stages = depth_of(x.dtype), self.stages
        warpgroup, program, half = lax.axis_index("warpgroup"), lax.axis_index("program"), lax.axis_index("pair")
        programs, down, steps = self.multiprocessors // TOGETHER, tokens // TOKENS, size // depth
        mine = jnp.maximum((down * self.pairs // TOGETHER - program + programs - 1) // programs, 0)

        def place(number):
            """First token and pair of tiles. A few tokens meet all weights, then the next: both come from the cache."""
            number = program + number * programs
            if pairs_share_tokens:
                return (number % down) * TOKENS, TOGETHER * (number // down) + half
            pair, across = place_of(number, down // TOGETHER, self.pairs)
            return (TOGETHER * pair + half) * TOKENS, across

        @pl.when(warpgroup == WARPGROUPS)
        def _copy():
            plgpu.set_max_registers(COPYING_REGISTERS, action="decrease")

            def copy_pair(number, count):
                token, across = place(number)

                def copy_step(step, count):
                    slot = count % stages
                    terms = pl.ds(step * depth, depth)
                    pl.when(count >= stages)(lambda: plgpu.barrier_wait(done.at[slot]))
                    some, shared = x.at[pl.ds(token, TOKENS), terms], "pair" if pairs_share_tokens else None
                    plgpu.copy_gmem_to_smem(some, x_smem.at[slot], here.at[slot], collective_axes=shared)
                    for which, target in enumerate((first_smem, second_smem)):
                        weights = self.tile(refs, which, across).at[:, terms]
                        shared = None if pairs_share_tokens else "pair"
                        plgpu.copy_gmem_to_smem(weights, target.at[slot], here.at[slot], collective_axes=shared)
                    return count + 1

                return lax.fori_loop(0, steps, copy_step, count)

            count = lax.fori_loop(0, mine, copy_pair, jnp.int32(0))

            @pl.loop(jnp.maximum(count - stages, 0), count)
            def _until_all_are_used(number):
                plgpu.barrier_wait(done.at[number % stages])

        @pl.when(warpgroup < WARPGROUPS)
        def _compute():
            plgpu.set_max_registers(REGISTERS, action="increase")
            rows = pl.ds(warpgroup * ROWS, ROWS)

            def compute_pair(number, count):
                token, across = place(number)
                early = self.begin(refs, token + warpgroup * ROWS)

                def products(first_ref, second_ref):
                    def step(number, last):
                        slot = (count + number) % stages
                        plgpu.barrier_wait(here.at[slot])
                        plgpu.wgmma(first_ref, x_smem.at[slot, rows], first_smem.at[slot].transpose((1, 0)))
                        plgpu.wgmma(second_ref, x_smem.at[slot, rows], second_smem.at[slot].transpose((1, 0)))
                        plgpu.wgmma_wait(2)  # those of the step before are done
                        pl.when(number > 0)(lambda: plgpu.barrier_arrive(done.at[last]))
                        return slot

                    last = lax.fori_loop(0, steps, step, jnp.int32(0))
                    sums = first_ref[...], second_ref[...]
                    plgpu.barrier_arrive(done.at[last])
                    return sums

                accumulator = plgpu.ACC((ROWS, self.columns), jnp.float32)
                sums = pl.run_scoped(products, accumulator, accumulator)
                self.finish(refs, staged.at[warpgroup], *sums, early, token + warpgroup * ROWS, across)
                return count + steps

            lax.fori_loop(0, mine, compute_pair, jnp.int32(0))
            plgpu.wait_smem_to_gmem(0)


def place_of(number: Any, down: int, pairs: int) -> tuple[Any, Any]:
    """Which pair of tiles of tokens, of `down`, meets which pair of tiles of weights, as the number-th."""
    group, within = number // (NEAR * pairs), number % (NEAR * pairs)
    wide = jnp.minimum(NEAR, down - group * NEAR)
    return group * NEAR + within % wide, within // wide


def whole_tiles(tokens: int, pairs: int) -> bool:
    """Whether so many tokens and pairs of tiles can be shared out to pairs of multiprocessors."""
    return tokens % TOKENS == 0 and (tokens // TOKENS % TOGETHER == 0 or pairs % TOGETHER == 0)


def depth_of(dtype: Any) -> int:
    """Terms of a step."""
    return DEPTH_BYTES // jnp.dtype(dtype).itemsize
