"""Sums of half of the terms each, exchanged between two multiprocessors: then both have all of half of the columns.

A neighbour's sums arrive in shared memory by themselves. Pallas's interpreter has no such stores: there they pass
through an array in memory, the mailbox.
"""

# mypy: disable-error-code="no-untyped-def"

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from onepass.kernels.hopper.attention import swizzled


def exchange_bytes(warpgroups: int, rows: int, columns: int) -> int:
    return warpgroups * rows * columns * 4


def exchange_scratch(warpgroups: int, rows: int, columns: int, interpret: Any) -> dict[str, Any]:
    both = plgpu.ClusterBarrier(collective_axes=("member",), num_barriers=warpgroups)
    if interpret:
        return {"arrived": both, "taken": both}
    sums = swizzled((warpgroups, rows, columns), jnp.float32)
    return {"sums_smem": sums, "arrived": plgpu.Barrier(num_barriers=warpgroups), "taken": both}


def exchange_mailbox(tokens: int, columns: int, interpret: Any) -> tuple[Any, ...]:
    """One more result of the kernel, after the others, which nobody asks for."""
    return (jax.ShapeDtypeStruct((tokens, columns), jnp.float32),) if interpret else ()


@dataclass(frozen=True)
class Exchange:
    """`sums_smem` [warpgroups, rows, columns] or, interpreted, `mailbox` [tokens, all columns]."""

    arrived: Any
    taken: Any
    sums_smem: Any = None
    mailbox: Any = None

    def __call__(self, sums, again, rows, first_column):
        """The sums of all terms, of this multiprocessor's half of the columns: the first's are the first. `again`:
        whether something was exchanged before; `rows` and `first_column` say what of the result it is."""
        member, warpgroup = lax.axis_index("member"), lax.axis_index("warpgroup")
        arrived, columns = self.arrived.at[warpgroup], sums.shape[1] // 2
        halves = sums[:, :columns], sums[:, columns:]
        own, other = lax.cond(member == 0, lambda: halves, lambda: halves[::-1])
        pl.when(again)(self.wait_until_taken)
        if self.mailbox is None:
            to = self.sums_smem.at[warpgroup]
            plgpu.async_store_smem(other, to, arrived, cluster_idx=1 - member, cluster_dim="member")
            plgpu.barrier_wait(arrived)
            received = plgpu.load(to, layout=plgpu.Layout.WGMMA)
        else:
            self.mailbox[rows, pl.ds(first_column + (1 - member) * columns, columns)] = other
            plgpu.barrier_arrive(arrived)
            plgpu.barrier_wait(arrived)
            received = self.mailbox[rows, pl.ds(first_column + member * columns, columns)]
        plgpu.barrier_arrive(self.taken.at[warpgroup])
        return own + received

    def wait_until_taken(self) -> None:
        """By both: shared memory may be written anew, or given up."""
        plgpu.barrier_wait(self.taken.at[lax.axis_index("warpgroup")])
