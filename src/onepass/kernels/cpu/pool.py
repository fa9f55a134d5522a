"""An empty pool of pages on a CPU (`csrc/attention/empty_pool.h`): zeros whose memory is taken when first written.

Needs `build.load_cpu()`. The pool's shapes are `engine.programs.builder`'; who writes it is `attention`.
"""

import jax

from onepass.attention.base import KvPool
from onepass.kernels.cpu.attention import DTYPES


def untouched_zeros(shapes: KvPool) -> KvPool:
    """Arrays of `shapes`, all zero. Both by one call: XLA would make two that are alike into one and a copy."""
    k, v = (jax.ShapeDtypeStruct(part.shape, part.dtype) for part in (shapes.k, shapes.v))
    return KvPool(*jax.ffi.ffi_call(f"onepass_cpu_zeros_{DTYPES[k.dtype]}", (k, v))())
