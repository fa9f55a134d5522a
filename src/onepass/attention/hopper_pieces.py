"""The pieces of work of `hopper`: what a multiprocessor's program takes one after another, and all that it is given.

A piece is 64 tokens of a row and two heads of a KV head's group, or 128 tokens and one head where a group is odd. Tiles
of keys are copied by one warpgroup (`hopper_copying`); two compute (`hopper_computing`).
"""

# mypy: disable-error-code="no-untyped-def"

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from onepass.attention.hopper_plan import COLUMNS, ITEMS_FROM, PREFIX_PARTS, Plan

ROWS = 64  # of queries that a warpgroup computes: what one wgmma instruction takes
STAGES = 2  # tiles of keys, and of values, in shared memory at once
QUERIES = 2  # pieces whose queries are there at once, for each warpgroup
WARPGROUPS = 2  # that compute
REGISTERS, COPYING_REGISTERS = 232, 40  # a thread: of those that compute, and of those that copy; 64K in all


@dataclass(frozen=True)
class Call:
    """The kernel, with all that is known before it runs."""

    block: int
    programs: int
    group: int
    has_prefix: bool
    plan: Plan
    interpreted: bool


@dataclass(frozen=True)
class Arrays:
    table: Any
    segment: Any
    parent: Any
    position: Any
    key_segment: Any
    key_position: Any
    q: Any
    k: Any
    v: Any
    prefix_k: Any
    prefix_v: Any
    prefix_row: Any  # where the rows of this layer begin
    out: Any


@dataclass(frozen=True)
class Shared:
    q_smem: Any
    k_smem: Any
    v_smem: Any
    places_smem: Any
    q_here: Any
    k_here: Any
    v_here: Any
    places_here: Any
    k_done: Any
    v_done: Any
    out_smem: Any = None


class Pieces:
    """Of one program, as its warpgroups see them."""

    def __init__(self, call: Call, arrays: Arrays, shared: Shared) -> None:
        self.call, self.arrays, self.shared = call, arrays, shared
        self.rows, _, heads, self.head_dim = arrays.q.shape
        self.tokens = call.plan.asking.segment.shape[1]  # of a row, in whole blocks
        self.together = ROWS * WARPGROUPS // call.block  # heads of a piece
        self.blocks, self.shares = self.tokens // call.block, heads // self.together
        self.all_keys = arrays.key_segment.shape[0] // self.rows
        self.warpgroup, program = lax.axis_index("warpgroup"), lax.axis_index("program")
        self.pieces = jnp.maximum(
            (self.rows * self.blocks * self.shares - program + call.programs - 1) // call.programs, 0
        )

    def piece(self, number):
        """Row, block of tokens, first head and the table's line of a piece; the last blocks of a row, its items, first:
        they take longest."""
        number = lax.axis_index("program") + number * self.call.programs
        rest, share = number // self.shares, number % self.shares
        row, block = rest // self.blocks, self.blocks - 1 - rest % self.blocks
        line = (row * self.blocks + block) * COLUMNS
        return row, block, share * self.together, [self.arrays.table[line + i] for i in range(ITEMS_FROM + 1)]

    def lengths(self, number):
        """Masked tiles of a piece, and all of them."""
        line = self.piece(number)[-1]
        return sum(line[PREFIX_PARTS:ITEMS_FROM]), sum(line[:ITEMS_FROM])

    def place(self, number):
        """Row, tokens and head of a warpgroup's part of a piece."""
        row, block, head, _ = self.piece(number)
        start = block * self.call.block
        if self.together == 1:
            return row, pl.ds(pl.multiple_of(start + self.warpgroup * ROWS, ROWS), ROWS), head
        return row, pl.ds(pl.multiple_of(start, ROWS), ROWS), head + self.warpgroup
