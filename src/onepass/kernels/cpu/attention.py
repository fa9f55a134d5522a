"""Scoring attention on CPUs in C++: `csrc/attention/` for every CPU, `csrc/amx/` for those with AMX.

The kernels get the whole pool with the layer's number, the step's tables and places as data, and loop over keys that
exist. Tables are stacked here, once a step; which keys a block visits is `block_table`, and the rule (`mask.sees`) is
mirrored in the C++, because it is asked of places that are never laid side by side.
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from onepass.attention.base import Heads, KeyValues, KvPool, Queries, Step, StepShape
from onepass.attention.block_table import block_table
from onepass.attention.reference import fit_block

Narrow = Literal["half", "short"]
BLOCK_LANES = 64  # rows that a block of tokens and all heads of a KV head should have, or more
TILE = 32  # tokens and terms of AMX's block of 2 x 2 tiles
DTYPES = {jnp.dtype(jnp.float32): "f32", jnp.dtype(jnp.bfloat16): "bf16"}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepTables:
    """The step's tables as the C++ reads them: rows of int32, one after another."""

    asking: Int[Array, "4 asking"]  # segment, parent, context, position
    blocks: Int[Array, "5 blocks"]  # BlockTable
    own: Int[Array, "2 tokens"]  # segment and position of the step's own keys
    entries: Int[Array, "4 entries"]  # page, context, start, length


def step_tables(queries: Queries, step: Step, block: int, page: int) -> StepTables:
    own = step.own_keys
    return StepTables(
        _stacked(queries.places),
        _stacked(block_table(queries, block, page)),
        jnp.stack([own.segment, own.position]).astype(jnp.int32),
        _stacked(step.pages),
    )


def _stacked(table: object) -> Int[Array, "rows columns"]:
    return jnp.stack(jax.tree.leaves(table)).astype(jnp.int32)


@dataclass(frozen=True)
class CpuAttention:
    """For every CPU: needs `build.load_cpu()`. In bfloat16 numbers are widened as they are read; sums are float32.

    `group`, heads of a KV head, decides only how many tokens fill a block's lanes: any other is right, too. `narrow`:
    keys, values and queries of a network in float32 are rounded to 16 bits and multiplied as such, in half precision
    or as integers; needs HALF_ATTENTION or SHORT_ATTENTION of `libraries`."""

    group: int = 4
    narrow: Narrow | None = None
    name: str = "cpu"
    page: int = 64

    @staticmethod
    def problem(dtype: jnp.dtype, head_dim: int) -> str | None:
        """Why the kernel does not take a model; None where it does. It takes every head_dim, group and page."""
        return None if jnp.dtype(dtype) in DTYPES else f"takes float32 and bfloat16, not {jnp.dtype(dtype).name}"

    @property
    def block(self) -> int:
        """Asking tokens at a time."""
        return max(16, BLOCK_LANES >> (self.group - 1))

    def prepare(self, queries: Queries, step: Step, shape: StepShape) -> StepTables:
        return step_tables(queries, step, fit_block(queries.index.shape[0], self.block), shape.page)

    def attend(
        self, q: Heads, keys: KeyValues, queries: Queries, step: Step, shape: StepShape, prepared: StepTables
    ) -> Heads:
        kind = f"{self.narrow}_" if self.narrow and q.dtype == jnp.float32 else ""
        call = jax.ffi.ffi_call(
            f"onepass_{self.name}_attend_{kind}{DTYPES[q.dtype]}",
            jax.ShapeDtypeStruct(q.shape, q.dtype),
            input_output_aliases={0: 0},  # what padding gets is what it has
        )
        return call(
            q, keys.k, keys.v, keys.pool.k, keys.pool.v, jnp.int32(keys.layer), jnp.int32(queries.count),
            prepared.asking, prepared.blocks, prepared.own, prepared.entries,
        )  # fmt: skip

    def write(
        self, pool: KvPool, layer: Int[Array, ""], k: Array, v: Array, step: Step, prepared: object = None
    ) -> KvPool:
        kind = jax.ShapeDtypeStruct(pool.k.shape, pool.k.dtype)
        call = jax.ffi.ffi_call(
            f"onepass_cpu_write_{DTYPES[pool.k.dtype]}", (kind, kind), input_output_aliases={5: 0, 6: 1}
        )
        new_k, new_v = (a.astype(pool.k.dtype) for a in (k, v))
        return KvPool(*call(new_k, new_v, step.slots, jnp.int32(layer), jnp.int32(step.queries.count), pool.k, pool.v))


@dataclass(frozen=True)
class AmxAttention(CpuAttention):
    """For CPUs with AMX: needs `build.load_amx()`. float32 numbers are three of 16 bits each, exactly."""

    name: str = "amx"

    @staticmethod
    def problem(dtype: jnp.dtype, head_dim: int) -> str | None:
        """The same of this kernel, whose tiles are 32 numbers deep; pages are a multiple of 32."""
        if head_dim % TILE:
            return f"takes heads of a multiple of {TILE} numbers, not {head_dim}"
        return CpuAttention.problem(dtype, head_dim)

    @property
    def block(self) -> int:
        return TILE
