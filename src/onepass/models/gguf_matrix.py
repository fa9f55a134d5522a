"""A matrix in the blocks of a quantised GGUF file, in the file's own bits: 4.5 bits a weight of Q4_K, 6.6 of Q6_K.

Rows may be of different block types, as in a file of type Q4_K_M, so each has its type and its place among the bytes.
Only C++ reads blocks (`kernels.cpu.build.load_cpu` registers it): products are `kernels.cpu.line_ops` and
`kernels.cpu.layer_ops`, embedding rows are here. Reading a file into this is `loading.gguf.weights`.
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8, UInt32

OFFSET_BYTES = 2  # the unit of `offsets`: blocks of every type are of even size


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GgufMatrix:
    """`shape` and `dtype` are those of the array that this stands for, [layers, ..., terms] or [rows, terms]: products
    are of numbers rounded to it."""

    blocks: UInt8[Array, " bytes"]
    offsets: UInt32[Array, "layers rows"]  # of each row in `blocks`
    kinds: UInt8[Array, "layers rows"]  # GGML's number of each row's block type
    shape: tuple[int, ...] = field(metadata={"static": True})
    dtype: np.dtype = field(default=np.dtype(np.float32), metadata={"static": True})

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        """What the C++ is given."""
        return self.blocks, self.offsets, self.kinds

    def rows(self, ids: Int[Array, " n"]) -> Float[Array, "n terms"]:
        """Rows of a matrix that is not stacked, widened: `array[ids]`."""
        out = jax.ShapeDtypeStruct((*ids.shape, self.shape[-1]), jnp.float32)
        wide: Array = jax.ffi.ffi_call("onepass_cpu_rows_gguf_f32", out)(ids.astype(jnp.int32), *self.arrays)
        return wide.astype(self.dtype)
