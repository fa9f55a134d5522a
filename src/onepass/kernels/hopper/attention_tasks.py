"""The tasks of the attention kernel: what a multiprocessor's program takes one after another, and all it is given.

A task is 64 tokens and two heads of a KV head's group, or 128 tokens and one head where a group is odd. Tiles of keys
are copied by one warpgroup (`attention_copy`); two compute (`attention_compute`). How many blocks of tokens there are
is read from the table: padding is no task.
"""

# mypy: disable-error-code="no-untyped-def"

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from onepass.kernels.hopper.attention_schedule import BLOCKS, COLUMNS, OWN_FROM, OWN_TILES, PARTS, WHOLE

ROWS = 64  # of queries that a warpgroup computes: what one wgmma instruction takes
STAGES = 2  # tiles of keys, and of values, in shared memory at once
QUERIES = 2  # tasks whose queries are there at once, for each warpgroup
WARPGROUPS = 2  # that compute
REGISTERS, COPYING_REGISTERS = 232, 40  # a thread: of those that compute, and of those that copy; 64K in all


@dataclass(frozen=True)
class Call:
    """The kernel, with all that is known before it runs."""

    block: int
    programs: int
    group: int
    entries: int  # of the page table
    pages: int  # of a layer
    interpreted: bool


@dataclass(frozen=True)
class Arrays:
    table: Any
    segment: Any
    parent: Any
    context: Any
    position: Any
    key_segment: Any
    key_position: Any
    page: Any  # of each entry
    layer: Any
    q: Any
    k: Any
    v: Any
    pool_k: Any
    pool_v: Any
    out: Any


@dataclass(frozen=True)
class Shared:
    q_smem: Any
    k_smem: Any
    v_smem: Any
    places_smem: Any
    q_full: Any
    k_full: Any
    v_full: Any
    places_full: Any
    k_empty: Any
    v_empty: Any
    out_smem: Any = None


class TaskLoop:
    """Of one program, as its warpgroups see it."""

    def __init__(self, call: Call, arrays: Arrays, shared: Shared) -> None:
        self.call, self.arrays, self.shared = call, arrays, shared
        _, heads, self.head_dim = arrays.q.shape
        self.together = ROWS * WARPGROUPS // call.block  # heads of a task
        self.blocks, self.shares = arrays.table[BLOCKS], heads // self.together
        self.warpgroup, program = lax.axis_index("warpgroup"), lax.axis_index("program")
        self.tasks = jnp.maximum((self.blocks * self.shares - program + call.programs - 1) // call.programs, 0)

    def task(self, number):
        """Block of tokens, first head and the table's line of a task; the last blocks first: in a step of one request
        they are its items, and take longest."""
        number = lax.axis_index("program") + number * self.call.programs
        block, share = self.blocks - 1 - number // self.shares, number % self.shares
        line = (block + 1) * COLUMNS
        return block, share * self.together, [self.arrays.table[line + i] for i in range(OWN_FROM + 1)]

    def lengths(self, number):
        """Masked tiles of a task, and all of them."""
        line = self.task(number)[-1]
        masked = line[PARTS] + line[OWN_TILES]
        return masked, masked + line[WHOLE]

    def place(self, number):
        """Tokens and head of a warpgroup's part of a task."""
        block, head, _ = self.task(number)
        start = block * self.call.block
        if self.together == 1:
            return pl.ds(pl.multiple_of(start + self.warpgroup * ROWS, ROWS), ROWS), head
        return pl.ds(pl.multiple_of(start, ROWS), ROWS), head + self.warpgroup
