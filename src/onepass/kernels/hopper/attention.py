"""Scoring attention for Hopper GPUs in one launch: the context's pages and the step's own keys (Mosaic GPU).

    program of 132:  for task:  for tile of 128 keys (masked pages, own keys, whole pages):
                                    scores = q · kᵀ;  out += weights of the tile before · v;  weigh the scores

What a multiprocessor does is `attention_tasks`, and which tiles of keys it visits `attention_schedule`; here is the
launch. Pages are read where they lie in the pool, own keys where the projection wrote them. 16-bit, head sizes 64 and
128. Blocks of padding are not computed, and their results not written: see `attention_schedule.SAFE`.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Int

from onepass.attention.base import Heads, KeyValues, KvPool, Queries, Step, StepShape
from onepass.kernels.hopper.attention_compute import Consumer
from onepass.kernels.hopper.attention_copy import Producer
from onepass.kernels.hopper.attention_schedule import KEYS, SAFE, Schedule, schedule_of
from onepass.kernels.hopper.attention_tasks import QUERIES, ROWS, STAGES, WARPGROUPS, Arrays, Call, Shared
from onepass.kernels.hopper.launch_order import let_next_begin, wait_for_last
from onepass.kernels.hopper.pool_write import write_groups, write_pool


@dataclass(frozen=True)
class HopperAttention:
    """A step's tokens are a multiple of 128; those that ask, as read-outs, of 64."""

    multiprocessors: int
    group: int  # query heads that share a KV head
    narrow: Any = None  # the dtype of results, if not the queries'
    interpret: Any = False
    name: str = "hopper"
    page: int = KEYS

    @property
    def block(self) -> int:
        """Tokens of a task: its two warpgroups take two heads of a group, or two blocks of tokens."""
        return ROWS if self.group % 2 == 0 else WARPGROUPS * ROWS

    def prepare(self, queries: Queries, step: Step, shape: StepShape) -> Schedule:
        return schedule_of(queries, step, self.block)

    def attend(
        self, q: Heads, keys: KeyValues, queries: Queries, step: Step, shape: StepShape, prepared: Schedule
    ) -> Heads:
        _checked(q, keys, shape)
        kv_heads, group, head_dim = q.shape[1:]
        pages = keys.pool.k.shape[1]
        call = Call(self.block, self.multiprocessors, group, shape.entries, pages, bool(self.interpret))
        tiles, narrow = (STAGES, KEYS, head_dim), jnp.dtype(self.narrow or q.dtype)
        # Results leave through the queries' memory, if they are of one kind.
        staged = {} if narrow == q.dtype else {"out_smem": swizzled((WARPGROUPS, ROWS, head_dim), narrow)}
        asking, places = prepared.asking, prepared.keys
        out = plgpu.kernel(
            functools.partial(_run, call),
            out_type=jax.ShapeDtypeStruct((q.shape[0], kv_heads * group, head_dim), narrow),
            scratch_types={
                "q_smem": swizzled((WARPGROUPS * QUERIES, ROWS, head_dim), q.dtype),
                "k_smem": swizzled(tiles, q.dtype),
                "v_smem": swizzled(tiles, q.dtype),
                "places_smem": plgpu.SMEM((STAGES, 2, KEYS), jnp.int32),
                "q_full": plgpu.Barrier(num_barriers=WARPGROUPS * QUERIES),
                "k_full": plgpu.Barrier(num_barriers=STAGES),
                "v_full": plgpu.Barrier(num_barriers=STAGES),
                "places_full": plgpu.Barrier(num_arrivals=2, num_barriers=STAGES),
                "k_empty": plgpu.Barrier(num_arrivals=WARPGROUPS, num_barriers=STAGES),
                "v_empty": plgpu.Barrier(num_arrivals=WARPGROUPS, num_barriers=STAGES),
                **staged,
            },
            grid=(self.multiprocessors,),
            grid_names=("program",),
            num_threads=WARPGROUPS + 1,
            thread_name="warpgroup",
            compiler_params=plgpu.CompilerParams(approx_math=True),
            interpret=self.interpret or None,
            kernel_name="scoring_attention",
        )(
            prepared.table.reshape(-1),
            *(asking.segment, asking.parent, asking.context, asking.position),
            *(places.segment, places.position),
            *(step.pages.page, keys.layer.astype(jnp.int32).reshape(1)),
            *(q.reshape(q.shape[0], -1, head_dim), keys.k, keys.v),
            # The whole pool, layers' pages one after another: a view, no copy.
            *(a.reshape(-1, *a.shape[2:]) for a in (keys.pool.k, keys.pool.v)),
        )
        return out.reshape(q.shape)

    def write(
        self, pool: KvPool, layer: Int[Array, ""], k: Array, v: Array, step: Step, prepared: Schedule | None = None
    ) -> KvPool:
        groups = write_groups(step.slots) if prepared is None else prepared.writes
        return write_pool(pool, layer, k, v, step.slots, groups, self.multiprocessors, self.interpret)


def _checked(q: Heads, keys: KeyValues, shape: StepShape) -> None:
    wanted = shape.page == KEYS and keys.k.shape[0] % SAFE == 0 and q.shape[0] % ROWS == 0
    if not wanted:
        raise ValueError(
            f"hopper attention wants pages of {KEYS} tokens, steps of a multiple of {SAFE}, asked by a multiple of"
            f" {ROWS}; got {shape.page}, {keys.k.shape[0]}, {q.shape[0]}"
        )


def _run(call: Call, *refs: Any, **shared: Any) -> None:
    wait_for_last(call.interpreted)
    let_next_begin(call.interpreted)
    given, warpgroup = (call, Arrays(*refs), Shared(**shared)), lax.axis_index("warpgroup")
    pl.when(warpgroup == WARPGROUPS)(Producer(*given).run)
    pl.when(warpgroup < WARPGROUPS)(Consumer(*given).run)


def swizzled(shape: tuple[int, ...], dtype: Any, part: int | None = None) -> Any:
    """Shared memory as products read it, in parts of so many columns, which can be written each by itself."""
    width = jnp.dtype(dtype).itemsize
    part = part or min(128 // width, shape[-1])
    transforms = (plgpu.TilingTransform((8, part)), plgpu.SwizzleTransform(width * part))  # type: ignore[abstract]
    return plgpu.SMEM(shape, dtype, transforms=transforms)
