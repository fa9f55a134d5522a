"""Scoring attention for Hopper GPUs in one launch: prefix, context and band, for every row of a batch (Mosaic GPU).

What a multiprocessor does is `hopper_pieces`, and which tiles of keys it visits `hopper_plan`; here is the launch.
16-bit, head sizes 64 and 128. Read-out rows of the last layer are few, and left to XLA (`cascade`).
"""

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from onepass.attention.base import Asking, Keys, Out, RowShape
from onepass.attention.cascade import Cascade
from onepass.attention.hopper_computing import Computing
from onepass.attention.hopper_copying import Copying
from onepass.attention.hopper_pieces import QUERIES, ROWS, STAGES, WARPGROUPS, Arrays, Call, Shared
from onepass.attention.hopper_plan import KEYS, Plan, plan_of
from onepass.attention.places import Places

# Tokens come in so many: a copy by TMA takes these lines together. The end of a row's last block is not there: copies
# leave out what lies beyond a row, and read zeros.
LINES = 8


@dataclass(frozen=True)
class Hopper:
    multiprocessors: int
    group: int  # query heads that share a KV head
    narrow: Any = None  # the dtype of results, if not the queries'
    interpret: Any = False
    name: str = "hopper"
    from_stack: ClassVar[bool] = True

    @property
    def block(self) -> int:
        """Tokens of a piece of work: its two warpgroups take two heads of a group, or two blocks of tokens."""
        return ROWS if self.group % 2 == 0 else WARPGROUPS * ROWS

    def prepare(self, places: Places, prefix: Places | None, shape: RowShape) -> Plan:
        return plan_of(places, prefix, shape, self.block)

    def full(
        self, asking: Asking, own: Keys, prefix: Keys | None, shape: RowShape, prepared: Plan | None = None
    ) -> Out:
        tokens, kv_heads, group, head_dim = asking.q.shape[1:]
        plan = prepared or self.prepare(own.places, None if prefix is None else prefix.places, shape)
        q, k, v = (_padded(a, LINES) for a in (asking.q, own.k, own.v))
        call = Call(self.block, self.multiprocessors, group, prefix is not None, plan, bool(self.interpret))
        tiles, narrow = (STAGES, KEYS, head_dim), jnp.dtype(self.narrow or q.dtype)
        # Results leave through the queries' memory, if they are of one kind.
        staged = {} if narrow == q.dtype else {"out_smem": swizzled((WARPGROUPS, ROWS, head_dim), narrow)}
        out = plgpu.kernel(
            functools.partial(_run, call),
            out_type=jax.ShapeDtypeStruct((*q.shape[:2], kv_heads * group, head_dim), narrow),
            scratch_types={
                "q_smem": swizzled((WARPGROUPS * QUERIES, ROWS, head_dim), q.dtype),
                "k_smem": swizzled(tiles, q.dtype),
                "v_smem": swizzled(tiles, q.dtype),
                "places_smem": plgpu.SMEM((STAGES, 2, KEYS), jnp.int32),
                "q_here": plgpu.Barrier(num_barriers=WARPGROUPS * QUERIES),
                "k_here": plgpu.Barrier(num_barriers=STAGES),
                "v_here": plgpu.Barrier(num_barriers=STAGES),
                "places_here": plgpu.Barrier(num_arrivals=2, num_barriers=STAGES),
                "k_done": plgpu.Barrier(num_arrivals=WARPGROUPS, num_barriers=STAGES),
                "v_done": plgpu.Barrier(num_arrivals=WARPGROUPS, num_barriers=STAGES),
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
            plan.table.reshape(-1),
            *(a.reshape(-1) for a in (plan.asking.segment, plan.asking.parent, plan.asking.position)),
            *(a.reshape(-1) for a in (plan.keys.segment, plan.keys.position)),
            *(q.reshape(*q.shape[:2], -1, head_dim), k, v),
            *_kept(prefix or Keys(k, v, own.places)),
        )
        return out[:, :tokens].reshape(asking.q.shape)

    def readouts(self, asking: Asking, own: Keys, prefix: Keys | None, shape: RowShape) -> Out:
        return Cascade().readouts(asking, own, prefix, shape)


def _run(call: Call, *refs: Any, **shared: Any) -> None:
    given, warpgroup = (call, Arrays(*refs), Shared(**shared)), lax.axis_index("warpgroup")
    pl.when(warpgroup == WARPGROUPS)(Copying(*given).run)
    pl.when(warpgroup < WARPGROUPS)(Computing(*given).run)


def swizzled(shape: tuple[int, ...], dtype: Any, part: int | None = None) -> Any:
    """Shared memory as products read it, in parts of so many columns, which can be written each by itself."""
    width = jnp.dtype(dtype).itemsize
    part = part or min(128 // width, shape[-1])
    transforms = (plgpu.TilingTransform((8, part)), plgpu.SwizzleTransform(width * part))  # type: ignore[abstract]
    return plgpu.SMEM(shape, dtype, transforms=transforms)


def _kept(keys: Keys) -> tuple[Array, Array, Array]:
    """Keys and values with the layers' rows one after another, and where the rows of the one that is meant begin."""
    k, v = (a.reshape(-1, *a.shape[-3:]) for a in (keys.k, keys.v))
    rows = keys.places.segment.shape[0]
    return k, v, jnp.zeros(1, jnp.int32) if keys.layer is None else (keys.layer * rows).reshape(1)


def _padded(a: Float[Array, "rows tokens *rest"], multiple: int) -> Array:
    spare = -a.shape[1] % multiple
    return jnp.pad(a, [(0, 0), (0, spare)] + [(0, 0)] * (a.ndim - 2)) if spare else a
