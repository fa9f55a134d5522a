"""An empty pool on a CPU is zeros wherever it lies, takes no memory before it is written, and can be donated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onepass.attention.base import KvPool
from onepass.kernels.cpu import build
from onepass.kernels.cpu.pool import untouched_zeros

pytestmark = pytest.mark.skipif(build.cpu_problem() is not None, reason=str(build.cpu_problem()))
PAGES = 4096  # bytes


@pytest.fixture(autouse=True, scope="module")
def _built() -> None:
    build.load_cpu()


def empty(count: int, dtype: str) -> KvPool:
    shape = jax.ShapeDtypeStruct((count,), jnp.dtype(dtype))
    return jax.jit(lambda: untouched_zeros(KvPool(shape, shape)))()


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGES


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("count", [1, 5, 1023, 1024, 1025, 5000, 1 << 18])
def test_memory_that_was_used_before_is_zeros(count: int, dtype: str) -> None:
    """The allocator gives memory again that others have let go."""
    for _ in range(3):
        used = [jnp.full((count,), 7, jnp.dtype(dtype)) + n for n in range(4)]
        jax.block_until_ready(used)
        del used
        pool = empty(count, dtype)
        assert not np.asarray(pool.k).any()
        assert not np.asarray(pool.v).any()


def test_memory_is_taken_when_it_is_written() -> None:
    before = resident_bytes()
    pool = empty(64 << 20, "float32")  # 256 MiB each
    jax.block_until_ready(pool)
    assert resident_bytes() - before < 64 << 20
    written = jax.jit(lambda p: KvPool(p.k + 1, p.v + 1), donate_argnums=0)(pool)
    jax.block_until_ready(written)
    assert resident_bytes() - before > 256 << 20


def test_keys_and_values_are_apart_and_stay_in_place_when_donated() -> None:
    pool = empty(1 << 20, "float32")
    places = [part.unsafe_buffer_pointer() for part in (pool.k, pool.v)]
    changed = jax.jit(lambda p: KvPool(p.k.at[0].set(1.0), p.v), donate_argnums=0)(pool)
    assert [part.unsafe_buffer_pointer() for part in (changed.k, changed.v)] == places
    assert (float(changed.k[0]), float(changed.v[0])) == (1.0, 0.0)
