"""Numbers of 32 bits that a product's epilogue asks for, on Hopper GPUs: copied behind the tiles that are multiplied,
through the same shared memory.

Loaded by those who compute, into the layout of the sums, they come in pieces of 8 bytes, and the tensor cores rest for
as long. Here they lie ready when the last products are done. What is made of them may leave through the same memory.
"""

# mypy: disable-error-code="no-untyped-def"

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from onepass.kernels.hopper.attention import swizzled
from onepass.kernels.hopper.tiles import ROWS, TOKENS

LATE = 32  # columns of a tile
AT_ONCE = 2  # tiles of a step: as much memory as its tiles of weights have
_COPIES = ((0, 0, TOKENS), (1, 0, ROWS), (1, ROWS, ROWS))  # as many as those of a step that is multiplied


@dataclass(frozen=True)
class LateSource:
    """Where the tiles lie: `tile(refs, across, columns, step, which)` is the first or second [tokens, LATE] of a step,
    of the pair `across` of tiles of so many columns, which has `steps(columns)`."""

    steps: Callable[[int], int]
    tile: Callable[..., Any]

    def copy(self, refs, token, across, columns: int, step, to, full) -> None:
        for which, first, rows in _COPIES:
            source = self.tile(refs, across, columns, step, which).at[pl.ds(token + first, rows)]
            plgpu.copy_gmem_to_smem(source, to.at[which, pl.ds(first, rows)], full)


def late_memory(stages: int) -> Any:
    return swizzled((stages, AT_ONCE, TOKENS, LATE), jnp.float32)


@dataclass(frozen=True)
class LateTiles:
    """As an epilogue sees them. Each step is waited for once and released once, in order."""

    memory: Any
    full: Any
    empty: Any
    first: Any  # number of the first step among all

    def _slot(self, step: int):
        return (self.first + step) % self.memory.shape[0]

    def wait(self, step: int) -> None:
        plgpu.barrier_wait(self.full.at[self._slot(step)])

    def release(self, step: int) -> None:
        plgpu.barrier_arrive(self.empty.at[self._slot(step)])

    def rows(self, number: int):
        """Of this warpgroup, of a tile."""
        step, which = divmod(number, AT_ONCE)
        return self.memory.at[self._slot(step), which, pl.ds(lax.axis_index("warpgroup") * ROWS, ROWS)]

    def load(self, number: int):
        return plgpu.load(self.rows(number), layout=plgpu.Layout.WGMMA)
