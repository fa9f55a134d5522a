"""Tiles of keys and values to shared memory by TMA, ahead of the warpgroups that compute with them: the producer."""

# mypy: disable-error-code="no-untyped-def"

import functools

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from onepass.kernels.hopper.attention_schedule import FINE, FIRST_ENTRY, KEYS, OWN_FROM, OWN_TILES, PARTS, WHOLE
from onepass.kernels.hopper.attention_tasks import COPYING_REGISTERS, STAGES, TaskLoop


class Producer(TaskLoop):
    def run(self) -> None:
        plgpu.set_max_registers(COPYING_REGISTERS, action="decrease")
        count = lax.fori_loop(0, self.tasks, self.copy_task, jnp.int32(0))

        @pl.loop(jnp.maximum(count - STAGES, 0), count)
        def _until_all_are_used(number):
            plgpu.barrier_wait(self.shared.k_empty.at[number % STAGES])
            plgpu.barrier_wait(self.shared.v_empty.at[number % STAGES])

    def copy_task(self, number, count):
        _, head, line = self.task(number)
        copy = functools.partial(self.copy_tile, head // self.call.group, self.arrays.layer[0] * self.call.pages, line)
        return lax.fori_loop(0, line[PARTS] + line[OWN_TILES] + line[WHOLE], copy, count)

    def copy_tile(self, kv_head, first_page, line, step, count):
        arrays, shared = self.arrays, self.shared
        slot = count % STAGES
        is_own, start, entry, places = self.tile(line, step)
        page = first_page + arrays.page[entry]  # before the wait, which hides how long it takes

        def into(smem, full, empty, own, pool):
            pl.when(count >= STAGES)(lambda: plgpu.barrier_wait(empty.at[slot]))

            def copy(ref):
                plgpu.copy_gmem_to_smem(ref, smem.at[slot], full.at[slot])

            pl.when(is_own)(lambda: copy(own.at[pl.ds(start, KEYS), kv_head]))
            pl.when(~is_own)(lambda: copy(pool.at[page, pl.ds(0, KEYS), kv_head]))

        into(shared.k_smem, shared.k_full, shared.k_empty, arrays.k, arrays.pool_k)
        into(shared.v_smem, shared.v_full, shared.v_empty, arrays.v, arrays.pool_v)

        @pl.when(step < line[PARTS] + line[OWN_TILES])
        def _places():
            some = pl.ds(pl.multiple_of(places, FINE), KEYS)
            for which, ref in enumerate((arrays.key_segment, arrays.key_position)):
                plgpu.copy_gmem_to_smem(ref.at[some], shared.places_smem.at[slot, which], shared.places_full.at[slot])

        return count + 1

    def tile(self, line, step):
        """Whether a step's keys are the step's own, and where they begin; else their entry of the page table; and where
        their places are."""
        of_own = step - line[PARTS]
        of_whole = of_own - line[OWN_TILES]
        is_own = (of_own >= 0) & (of_whole < 0)
        start = jnp.where(is_own, line[OWN_FROM] + of_own * KEYS, 0)
        page = line[FIRST_ENTRY] + jnp.where(of_whole < 0, line[WHOLE] + step, of_whole)
        entry = jnp.where(is_own, 0, page)
        places = jnp.where(is_own, self.call.entries * KEYS + start, entry * KEYS)
        return is_own, pl.multiple_of(start, FINE), entry, places
