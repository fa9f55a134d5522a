"""Gate and up of a few tokens on Hopper GPUs: one tile for each multiprocessor, and no second round (Mosaic GPU).

    pair of multiprocessors:  2 tiles of 192 tokens x 96 columns of gate and of up, which they share

`gemm` shares tiles of 128 tokens by 256 columns out to as many rounds as it takes; 384 tokens and 6,144 columns are 144
of them for 132 multiprocessors. Tiles of 192 by 192 are 128. Three warpgroups compute, 64 tokens each; one copies.
"""

# mypy: disable-error-code="no-untyped-def"

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from onepass.kernels.hopper.attention import swizzled
from onepass.kernels.hopper.epilogue import GemmInput, gated, write_part
from onepass.kernels.hopper.launch_order import let_next_begin, wait_for_last
from onepass.kernels.hopper.tiles import ROWS, depth_of

WARPGROUPS = 3
TOKENS = WARPGROUPS * ROWS  # of a multiprocessor
TOGETHER = 2  # multiprocessors that share tiles of weights; of four, 120 of an H200's 132 could be used
WIDTHS = (96, 48)  # columns of a tile
PARTS = 3  # of a tile's columns, written one after another
STAGED = 2  # of them in shared memory at once
LEAST_PART_BYTES = 32  # of a row: shared memory cannot be swizzled by less
STAGES = 4
REGISTERS, COPYING_REGISTERS = 160, 32


def one_round_width(tokens: int, gate_up: Any, multiprocessors: int) -> int | None:
    """Columns of a tile with which these are one round that leaves no more than a quarter of the multiprocessors
    without work; None where there are none such."""
    mlp, size = gate_up.shape[2:]
    pairs = multiprocessors // TOGETHER
    for width in WIDTHS:
        whole = mlp % width == 0 and size % depth_of(gate_up.dtype) == 0
        whole &= width // PARTS * jnp.dtype(gate_up.dtype).itemsize >= LEAST_PART_BYTES
        if tokens == TOGETHER * TOKENS and whole and 0.75 * pairs <= mlp // width <= pairs:
            return width
    return None


def gate_up_in_one_round(
    given: GemmInput,
    gate_up: Float[Array, "layers 2 mlp size"],
    layer: Int[Array, ""],
    width: int,
    interpret: Any = False,
) -> Float[Array, "tokens mlp"]:
    """silu(x · gateᵀ) · (x · upᵀ)"""
    x, mlp = given.x, gate_up.shape[2]
    depth, part = depth_of(x.dtype), width // PARTS

    def kernel(x_ref, weights, layer_ref, *refs, **shared) -> None:
        tile = _Tile(given, width, interpret, x_ref, weights, layer_ref, refs[:-1], refs[-1], **shared)
        warpgroup = lax.axis_index("warpgroup")
        pl.when(warpgroup == WARPGROUPS)(tile.copy)
        pl.when(warpgroup < WARPGROUPS)(tile.compute)

    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((x.shape[0], mlp), x.dtype),
        scratch_types={
            "x_smem": swizzled((STAGES, TOKENS, depth), x.dtype),
            "weights_smem": swizzled((STAGES, 2 * width, depth), x.dtype),
            "staged": swizzled((WARPGROUPS, STAGED, ROWS, part), x.dtype),
            "full": plgpu.Barrier(num_arrivals=3, num_barriers=STAGES),
            "empty": plgpu.ClusterBarrier(collective_axes=("member",), num_arrivals=WARPGROUPS, num_barriers=STAGES),
        },
        grid=(mlp // width,),
        grid_names=("program",),
        cluster=(TOGETHER,),
        cluster_names=("member",),
        num_threads=WARPGROUPS + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=interpret or None,
        kernel_name="gate_up_product",
    )(x, gate_up, layer.astype(jnp.int32).reshape(1), *given.given)


@dataclass(frozen=True)
class _Tile:
    """What a multiprocessor does, as its warpgroups see it."""

    given: GemmInput
    width: int
    interpret: Any
    x: Any
    weights: Any
    layer: Any
    more: tuple[Any, ...]  # that `given` brings
    out: Any
    x_smem: Any
    weights_smem: Any
    staged: Any
    full: Any
    empty: Any

    @property
    def steps(self) -> int:
        return self.x.shape[1] // depth_of(self.x.dtype)

    @property
    def column(self):
        return lax.axis_index("program") * self.width

    def copy(self) -> None:
        """Weights first: the kernel ahead did not write them."""
        plgpu.set_max_registers(COPYING_REGISTERS, action="decrease")
        first = min(STAGES, self.steps)
        pl.loop(0, first)(lambda step: self.copy_weights(step, step))
        wait_for_last(self.interpret)
        pl.loop(0, first)(lambda step: self.copy_tokens(step, step))

        @pl.loop(first, self.steps)
        def _step(step):
            slot = step % STAGES
            plgpu.barrier_wait(self.empty.at[slot])
            self.copy_tokens(step, slot)
            self.copy_weights(step, slot)

        @pl.loop(self.steps - first, self.steps)
        def _until_all_are_used(step):
            plgpu.barrier_wait(self.empty.at[step % STAGES])

    def copy_tokens(self, step, slot) -> None:
        depth = depth_of(self.x.dtype)
        some = self.x.at[pl.ds(lax.axis_index("member") * TOKENS, TOKENS), pl.ds(step * depth, depth)]
        plgpu.copy_gmem_to_smem(some, self.x_smem.at[slot], self.full.at[slot])

    def copy_weights(self, step, slot) -> None:
        depth = depth_of(self.x.dtype)
        for which in range(2):
            some = self.weights.at[self.layer[0], which, pl.ds(self.column, self.width), pl.ds(step * depth, depth)]
            target = self.weights_smem.at[slot, pl.ds(which * self.width, self.width)]
            plgpu.copy_gmem_to_smem(some, target, self.full.at[slot], collective_axes="member")

    def compute(self) -> None:
        plgpu.set_max_registers(REGISTERS, action="increase")
        wait_for_last(self.interpret)
        let_next_begin(self.interpret)
        warpgroup = lax.axis_index("warpgroup")
        rows = pl.ds(warpgroup * ROWS, ROWS)
        token = lax.axis_index("member") * TOKENS + warpgroup * ROWS
        size = self.given.size(self.more, token)

        def products(sums):
            @pl.loop(0, self.steps)
            def _step(step):
                slot = step % STAGES
                plgpu.barrier_wait(self.full.at[slot])
                plgpu.wgmma(sums, self.x_smem.at[slot, rows], self.weights_smem.at[slot].transpose((1, 0)))
                plgpu.wgmma_wait(1)  # that of the step before is done
                pl.when(step > 0)(lambda: plgpu.barrier_arrive(self.empty.at[(step - 1) % STAGES]))

            values = sums[...]
            plgpu.barrier_arrive(self.empty.at[(self.steps - 1) % STAGES])
            return values

        sums = pl.run_scoped(products, plgpu.ACC((ROWS, 2 * self.width), jnp.float32))
        self.finish(sums, size, token)

    def finish(self, sums, size, token) -> None:
        warpgroup, layer, part = lax.axis_index("warpgroup"), self.layer[0], self.width // PARTS
        out, mlp = self.out.at[pl.ds(token, ROWS)], self.weights.shape[2]
        for start in range(0, self.width, part):
            column, other = self.column + start, self.width + start
            gate = self.given.true(self.more, size, sums[:, start : start + part], layer, column)
            up = self.given.true(self.more, size, sums[:, other : other + part], layer, mlp + column)
            value = gated(gate, up).astype(self.x.dtype)
            write_part(self.staged.at[warpgroup], start // part, value, out, column)
        plgpu.wait_smem_to_gmem(0)
