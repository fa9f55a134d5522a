"""The TPU kernels compile with the real TPU compiler within a scan over layers, and never copy the pool.

Each case is half a minute of one core. libtpu describes TPUs that are not here; it reads the environment when it is
first asked.
"""

import os
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from onepass.attention.base import KeyValues, KvPool, PageTable, Queries, Step, StepShape
from onepass.attention.mask import Places
from onepass.kernels.tpu.attention import TpuAttention
from onepass.parallel.topology import COMPILER_ONLY, Topology

LAYERS = 28


@pytest.fixture(scope="module")
def v6e() -> Iterator[SingleDeviceSharding]:
    pytest.importorskip("libtpu")
    with pytest.MonkeyPatch.context() as patched:
        for name, value in COMPILER_ONLY.items():
            patched.setitem(os.environ, name, value)
        yield SingleDeviceSharding(Topology.parse("v6e:1x1").devices()[0])


def layers(where: SingleDeviceSharding, shape: StepShape, heads: tuple[int, int, int], pages: int) -> tuple[Any, int]:
    """Write and attend in every layer, then at the read-outs, compiled from shapes alone; and the pool's bytes."""
    attention, (kv_heads, group, head_dim) = TpuAttention(), heads

    def of(*size: int, kind: str = "bfloat16") -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(size, jnp.dtype(kind), sharding=where)

    def run(pool: KvPool, q: Any, k: Any, v: Any, step: Step) -> Any:
        table = attention.prepare(step.queries, step, shape)

        def layer(carry: Any, number: Any) -> Any:
            q, pool = carry
            pool = attention.write(pool, number, k + number.astype(k.dtype), v, step)
            return (attention.attend(q, KeyValues(k, v, pool, number), step.queries, step, shape, table), pool), None

        (q, pool), _ = jax.lax.scan(layer, (q, pool), jnp.arange(LAYERS, dtype=jnp.int32))
        some = step.queries.take(step.readouts, step.num_readouts)
        keys = KeyValues(k, v, pool, jnp.int32(LAYERS - 1))
        table = attention.prepare(some, step, shape)
        return pool, attention.attend(q[step.readouts], keys, some, step, shape, table)

    of_tokens, one = of(shape.tokens, kind="int32"), of(kind="int32")
    queries = Queries(Places(*[of_tokens] * 4), of_tokens, of_tokens, of_tokens, of_tokens, one)
    table = PageTable(*[of(shape.entries, kind="int32")] * 4)
    step = Step(of_tokens, queries, of_tokens, table, of(shape.readouts, kind="int32"), one)
    kept, own = of(LAYERS, pages, shape.page, kv_heads, head_dim), of(shape.tokens, kv_heads, head_dim)
    traced = jax.jit(run, donate_argnums=0).trace(
        KvPool(kept, kept), of(shape.tokens, kv_heads, group, head_dim), own, own, step
    )
    return traced.lower(lowering_platforms=("tpu",)).compile(), 2 * 2 * kept.size


@pytest.mark.parametrize(
    ("tokens", "entries", "heads"),
    [
        (512, 4096, (2, 2, 128)),  # Qwen3-0.6B on 2x2
        pytest.param(512, 1024, (1, 2, 128), marks=pytest.mark.slow),  # on 2x4
        pytest.param(512, 1024, (8, 2, 128), marks=pytest.mark.slow),
        pytest.param(16384, 4096, (8, 2, 128), marks=pytest.mark.slow),
        (512, 1024, (3, 3, 64)),  # SmolLM2-135M
    ],
)
def test_the_pool_is_never_copied(
    v6e: SingleDeviceSharding, tokens: int, entries: int, heads: tuple[int, int, int]
) -> None:
    compiled, pool = layers(v6e, StepShape(tokens, tokens // 8, 16, entries, 128), heads, 1024)
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes == pool
    own = tokens * heads[0] * (heads[1] + 2) * 128 * 2
    assert memory.temp_size_in_bytes < 8 * own + (4 << 20) < pool / 4
    for kernel in ("scoring_attention", "write_pages"):
        assert kernel in compiled.as_text()
