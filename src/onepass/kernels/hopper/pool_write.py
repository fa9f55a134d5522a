"""Keys and values of a step's context tokens into their pages, in place (Mosaic GPU).

    program:  for 16 tokens some of which are kept:  k, v -> shared memory -> each kept row to its slot, by TMA

Which sixteens those are is found once for all layers (`write_groups`): looking for them here took longer than copying.

The pool is input and output of the same memory (`input_output_aliases`); nothing else of it is touched. TMA counts in
rows, so a pool of any size is addressed in 32 bits.

    bytes a layer: 4 · kept tokens · kv_heads · head_dim · 2
"""

# mypy: disable-error-code="no-untyped-def"

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Int

from onepass.attention.base import KvPool
from onepass.kernels.hopper.launch_order import let_next_begin, wait_for_last

TOGETHER = 16  # tokens that a program takes at once
PROGRAMS = 3  # of a multiprocessor: one's copies come while the others' leave


def write_groups(slots: Int[Array, " tokens"]) -> Int[Array, " groups"]:
    """How many groups of tokens have some that are kept, and then their numbers."""
    some = (slots.reshape(-1, TOGETHER) >= 0).any(axis=1)
    number = jnp.cumsum(some) - 1
    groups = jnp.zeros(some.shape[0], jnp.int32)
    groups = groups.at[jnp.where(some, number, some.shape[0])].set(
        jnp.arange(some.shape[0], dtype=jnp.int32), mode="drop"
    )
    return jnp.concatenate([some.sum(dtype=jnp.int32)[None], groups])


def write_pool(
    pool: KvPool,
    layer: Int[Array, ""],
    k: Array,
    v: Array,
    slots: Int[Array, " tokens"],
    groups: Int[Array, " groups"],
    multiprocessors: int,
    interpret: Any = False,
) -> KvPool:
    layers, pages, page, kv_heads, head_dim = pool.k.shape
    rows = (layers * pages * page, kv_heads, head_dim)
    programs = PROGRAMS * multiprocessors
    staged = plgpu.SMEM((TOGETHER, kv_heads, head_dim), pool.k.dtype)

    def kernel(*refs) -> None:
        pl.run_scoped(functools.partial(write, *refs), staged, staged, plgpu.Barrier(num_arrivals=2))

    def write(to_k, to_v, layer_ref, slots_ref, groups_ref, k_ref, v_ref, k_smem, v_smem, full) -> None:
        wait_for_last(interpret)
        let_next_begin(interpret)
        program = lax.axis_index("program")
        first_row = layer_ref[0] * (pages * page)

        def copy(token, to) -> None:
            tokens = pl.ds(token, TOGETHER)
            plgpu.copy_gmem_to_smem(k_ref.at[tokens], k_smem, full)
            plgpu.copy_gmem_to_smem(v_ref.at[tokens], v_smem, full)
            plgpu.barrier_wait(full)
            for n, slot in enumerate(to):
                for source, target in ((k_smem, to_k), (v_smem, to_v)):
                    pl.when(slot >= 0)(row_copy(source.at[n], target.at[first_row + slot]))
            plgpu.wait_smem_to_gmem(0)

        @pl.loop(0, jnp.maximum((groups_ref[0] - program + programs - 1) // programs, 0))
        def _group(number):
            token = pl.multiple_of(groups_ref[1 + program + number * programs] * TOGETHER, TOGETHER)
            copy(token, [slots_ref[token + n] for n in range(TOGETHER)])

    def row_copy(source, target):
        return lambda: plgpu.copy_smem_to_gmem(source, target)

    # Memory that a kernel writes in place: as input_output_aliases, which `plgpu.kernel` has no argument for.
    kept = [jax.new_ref(a.reshape(rows)) for a in (pool.k, pool.v)]
    pl.kernel(
        kernel,
        mesh=plgpu.Mesh(grid=(programs,), grid_names=("program",), kernel_name="pool_write"),
        compiler_params=plgpu.CompilerParams(),
        interpret=interpret,
        name="pool_write",
    )(
        *kept,
        *(a.astype(jnp.int32).reshape(-1) for a in (layer, slots, groups)),
        *(a.astype(pool.k.dtype) for a in (k, v)),
    )
    return KvPool(*(ref[...].reshape(pool.k.shape) for ref in kept))
