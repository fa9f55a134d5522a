"""What this machine can do at best, measured before anything is compared with it: a large product and a large copy.

Both run through JAX, so that they are the ceilings of what onepass is made of. Work is set against them in `roofline`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from onepass.attention.base import precision

REPEATS = 7


@dataclass(frozen=True)
class Ceilings:
    """The best of several tries."""

    dtype: str
    flops_per_second: float
    bytes_per_second: float
    product_size: int  # n of an n×n by n×n product
    copy_bytes: int
    devices: int = 1

    def times(self, devices: int) -> "Ceilings":
        """Those of several such devices together."""
        flops, rate = devices * self.flops_per_second, devices * self.bytes_per_second
        return replace(self, flops_per_second=flops, bytes_per_second=rate, devices=devices)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def measure_ceilings(dtype: str, product_size: int | None = None, copy_bytes: int | None = None) -> Ceilings:
    fast = jax.default_backend() != "cpu"
    n = product_size or (8192 if fast else 2048)
    size = copy_bytes or ((1 << 30) if fast else (1 << 28))
    kind = jnp.dtype(jnp.float8_e4m3fn if dtype == "fp8" else dtype)
    square = jax.random.normal(jax.random.key(0), (n, n), jnp.float32).astype(kind)
    exact, out_dtype = precision(kind), jnp.bfloat16 if kind.itemsize == 1 else kind

    @jax.jit
    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.matmul(a, b, precision=exact, preferred_element_type=out_dtype)

    @jax.jit
    def copy(a: jax.Array) -> jax.Array:
        return a + 1  # one read and one write; a bare copy would be left out by the compiler

    flops = 2.0 * n**3 / _best(lambda: product(square, square))
    line = jnp.zeros(size // 4, jnp.int32)
    return Ceilings(dtype, flops, 2.0 * size / _best(lambda: copy(line)), n, size)


def _best(call: Callable[[], jax.Array]) -> float:
    jax.block_until_ready(call())
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - start)
    return min(seconds)
