"""What a read-out's logits over the vocabulary come to, by `csrc/products/`: none of them is kept.

Of tables in float32, in bfloat16, and in a GGUF file's blocks, which are widened to float32 for float32 products.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from onepass.kernels.cpu.attention import DTYPES
from onepass.kernels.cpu.operands import in_float32
from onepass.models.gguf_matrix import GgufMatrix
from onepass.models.layer_ops import Count
from onepass.models.weights import Weights

LINE = 16  # kLine of cpu_products.h


def over_vocabulary(
    weights: Weights, hidden: Float[Array, "readouts hidden"], count: Count
) -> Float[Array, "readouts 3"]:
    """As `LayerOps.over_vocabulary`."""
    table = weights.unembed
    gguf = isinstance(table, GgufMatrix)
    arrays = table.arrays if gguf else (table[None], in_float32(None), in_float32(None))
    x = hidden.astype(jnp.float32 if gguf else table.dtype)
    kinds = [(x.shape[0], 3), (-(-x.shape[0] // LINE), x.shape[1], LINE)]
    call = jax.ffi.ffi_call(
        f"onepass_cpu_vocabulary_{'gguf_' if gguf else ''}{DTYPES[x.dtype]}",
        [jax.ShapeDtypeStruct(kind, jnp.float32) for kind in kinds],
    )
    return call(x, jnp.int32(count), *arrays, jnp.int32(0), in_float32(weights.head_bias))[0]
