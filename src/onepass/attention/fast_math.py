"""Two things that XLA on the CPU does slowly, and that decide how long elementwise work takes there.

Its exp takes one and a half times as long as this power of two; its rounding to 16 bits looks for NaN in every number,
which costs more than the exp. Both are exact enough for float32 (see the test). Other devices have instructions for
them.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LOG2_E = 1.4426950408889634
# 2^f = 1 + Σ c·f^i for |f| ≤ 1/2, fitted to the least largest relative error (1e-7) with the constant held at 1.
POWERS = (0.6931470036506653, 0.24022242426872253, 0.05550733581185341, 0.009671512991189957, 0.001326472614891827)


def power_of_two(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """2^x in float32 for |x| ≤ 126. On the CPU it falls to exactly 0 at -127 and stays at 2^126 above."""
    return jax.lax.platform_dependent(x, cpu=_polynomial, default=jnp.exp2)


def _polynomial(x: Float[Array, "..."]) -> Float[Array, "..."]:
    x = jnp.clip(x, -127.0, 126.0)
    whole = jnp.round(x)
    part = x - whole
    value = jnp.full_like(part, POWERS[-1])
    for coefficient in (*POWERS[-2::-1], 1.0):
        value = value * part + coefficient
    bits = jax.lax.bitcast_convert_type(value, jnp.int32) + (whole.astype(jnp.int32) << 23)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def rounded(x: Float[Array, "..."], dtype: jnp.dtype) -> Array:
    """float32 to `dtype`, to the nearest (on the CPU halves go away from 0); infinities and the usual NaN stay."""
    if dtype != jnp.bfloat16:
        return x.astype(dtype)
    return jax.lax.platform_dependent(x, cpu=_by_bits, default=lambda x: x.astype(jnp.bfloat16))


def _by_bits(x: Float[Array, "..."]) -> Array:
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32) + jnp.uint32(0x8000)
    return jax.lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16)
