"""Tiles of keys and values to shared memory by TMA, ahead of those who compute with them: one warpgroup of `hopper`."""

# mypy: disable-error-code="no-untyped-def"

import functools

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from onepass.attention.hopper_pieces import COPYING_REGISTERS, STAGES, Pieces
from onepass.attention.hopper_plan import (
    CONTEXT_FULL,
    CONTEXT_PARTS,
    FINE,
    ITEM_TILES,
    ITEMS_FROM,
    KEYS,
    PREFIX_FULL,
    PREFIX_PARTS,
)


class Copying(Pieces):
    def run(self) -> None:
        plgpu.set_max_registers(COPYING_REGISTERS, action="decrease")
        count = lax.fori_loop(0, self.pieces, self.copy_piece, jnp.int32(0))

        @pl.loop(jnp.maximum(count - STAGES, 0), count)
        def _until_all_are_used(number):
            plgpu.barrier_wait(self.shared.k_done.at[number % STAGES])
            plgpu.barrier_wait(self.shared.v_done.at[number % STAGES])

    def copy_piece(self, number, count):
        row, _, head, line = self.piece(number)
        copy = functools.partial(self.copy_tile, row, head // self.call.group, line)
        return lax.fori_loop(0, sum(line[:ITEMS_FROM]), copy, count)

    def copy_tile(self, row, kv_head, line, step, count):
        arrays, shared = self.arrays, self.shared
        slot = count % STAGES
        from_prefix, start, places = self.tile(line, step)
        tokens = pl.ds(start, KEYS)

        def into(smem, here, done, own, kept):
            pl.when(count >= STAGES)(lambda: plgpu.barrier_wait(done.at[slot]))

            def copy(ref, row):
                plgpu.copy_gmem_to_smem(ref.at[row, tokens, kv_head], smem.at[slot], here.at[slot])

            if not self.call.has_prefix:
                return copy(own, row)
            pl.when(from_prefix)(lambda: copy(kept, arrays.prefix_row[0] + row))
            return pl.when(~from_prefix)(lambda: copy(own, row))

        into(shared.k_smem, shared.k_here, shared.k_done, arrays.k, arrays.prefix_k)
        into(shared.v_smem, shared.v_here, shared.v_done, arrays.v, arrays.prefix_v)

        @pl.when(step < sum(line[PREFIX_PARTS:ITEMS_FROM]))
        def _places():
            some = pl.ds(pl.multiple_of(row * self.all_keys + places, FINE), KEYS)
            for which, ref in enumerate((arrays.key_segment, arrays.key_position)):
                plgpu.copy_gmem_to_smem(ref.at[some], shared.places_smem.at[slot, which], shared.places_here.at[slot])

        return count + 1

    def tile(self, line, step):
        """Whether a step's keys are the prefix's, where they begin there, and where their places are."""
        part = step - line[PREFIX_PARTS]
        of_items = part - line[CONTEXT_PARTS]
        full = of_items - line[ITEM_TILES]
        from_prefix = (part < 0) | ((full >= 0) & (full < line[PREFIX_FULL]))
        is_items = (of_items >= 0) & (full < 0)
        in_prefix = jnp.where(part < 0, line[PREFIX_FULL], full) * KEYS
        in_context = jnp.where(full < 0, line[CONTEXT_FULL] + part, full - line[PREFIX_FULL]) * KEYS
        in_row = jnp.where(is_items, line[ITEMS_FROM] + of_items * KEYS, in_context)
        start = jnp.where(from_prefix, in_prefix, in_row)
        base = jnp.where(from_prefix, 0, jnp.where(is_items, self.call.plan.items_at, self.call.plan.context_at))
        return from_prefix, pl.multiple_of(start, FINE), base + start
