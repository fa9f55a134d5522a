"""The band kernel equals XLA's band and merge in interpret mode, and lowers for an NVIDIA GPU that is not here.

With ONEPASS_TEST_PLATFORM=cuda on such a machine the same comparison runs compiled, in bfloat16.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from onepass.attention.base import Asking, Keys, RowShape
from onepass.attention.cascade import Cascade
from onepass.attention.pallas_gpu import band_merge
from onepass.attention.places import PADDING, Places, context_places

ON_GPU = jax.default_backend() == "gpu"


def item_places(rng: np.random.Generator, rows: int, width: int, longest: int, base: int) -> Places:
    """Rows full of items of 1 to `longest` tokens, every third with two branches, padded at the end."""
    grid = np.full((rows, width, 3), (PADDING, PADDING, 0), np.int32)
    for r in range(rows):
        at, segment = 0, 0
        while True:
            length = int(rng.integers(1, longest // 2 + 1))
            branches = [int(rng.integers(1, max(2, longest // 4 + 1))) for _ in range(2)] if segment % 3 == 0 else []
            if at + length + sum(branches) > width - 3:
                break
            segment += 1
            item = segment
            grid[r, at : at + length] = [(item, 0, base + i) for i in range(length)]
            at += length
            for branch in branches:
                segment += 1
                grid[r, at : at + branch] = [(segment, item, base + length + i) for i in range(branch)]
                at += branch
    return Places(*(jnp.array(grid[..., i]) for i in range(3)))


@pytest.mark.parametrize("with_prefix", [True, False])
@pytest.mark.parametrize(
    ("rows", "width", "kv_heads", "group", "head_dim", "band", "dtype"),
    [
        (2, 96, 2, 2, 16, 16, "float32"),
        (1, 128, 1, 4, 32, 64, "float32"),
        (1, 80, 3, 3, 16, 32, "float32"),
        (1, 200, 2, 7, 16, 128, "float32"),
        (2, 96, 2, 2, 64, 32, "bfloat16"),
        (1, 160, 2, 6, 128, 64, "bfloat16"),
    ],
)
def test_band_kernel_equals_the_band_in_xla(
    rows: int, width: int, kv_heads: int, group: int, head_dim: int, band: int, dtype: str, with_prefix: bool
) -> None:
    if ON_GPU and dtype == "float32":
        pytest.skip("on a GPU the kernel runs 16-bit only, as the engine chooses it")
    rng = np.random.default_rng(0)
    prefix_width = 24
    places = item_places(rng, rows, width, band, prefix_width)

    def draw(*size: int) -> jax.Array:
        return jnp.array(rng.standard_normal(size), dtype)

    own = Keys(draw(rows, width, kv_heads, head_dim), draw(rows, width, kv_heads, head_dim), places)
    lengths = jnp.array([prefix_width - 3 * r for r in range(rows)])
    prefix = Keys(
        draw(rows, prefix_width, kv_heads, head_dim),
        draw(rows, prefix_width, kv_heads, head_dim),
        context_places(lengths, prefix_width),
    )
    q = draw(rows, width, kv_heads, group, head_dim)
    shape = RowShape(rows, prefix_width if with_prefix else 0, 0, width, band, 1, 1)
    xla = Cascade()
    wanted = xla.full(Asking(q, places, jnp.zeros((rows, width), int)), own, prefix if with_prefix else None, shape)
    partial = xla._block(q, prefix) if with_prefix else None
    got = band_merge(q, own, partial, band, interpret=not ON_GPU)
    real = np.asarray(places.segment) != PADDING
    difference = np.asarray(got, np.float32)[real] - np.asarray(wanted, np.float32)[real]
    if dtype == "float32":
        assert np.abs(difference).max() <= 1e-5
    else:
        assert np.linalg.norm(difference) <= 2e-2 * np.linalg.norm(np.asarray(wanted, np.float32)[real])
    assert np.isfinite(np.asarray(got, np.float32)).all()


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")  # docs/log.md says what follows it
@pytest.mark.parametrize(("group", "head_dim"), [(1, 64), (2, 128), (3, 64), (7, 64), (4, 128)])
def test_band_kernel_lowers_for_a_hopper_gpu(group: int, head_dim: int) -> None:
    rows, width, kv_heads = 1, 256, 2
    ints = jax.ShapeDtypeStruct((rows, width), jnp.int32)
    q = jax.ShapeDtypeStruct((rows, width, kv_heads, group, head_dim), jnp.bfloat16)
    k = jax.ShapeDtypeStruct((rows, width, kv_heads, head_dim), jnp.bfloat16)
    lse = jax.ShapeDtypeStruct((rows, width, kv_heads, group), jnp.float32)

    def run(q, k, v, places, out, lse):
        return band_merge(q, Keys(k, v, places), (out, lse), 32)

    mesh = AbstractMesh((1,), ("x",), abstract_device=AbstractDevice("NVIDIA H200", None, "gpu"))
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(run).trace(q, k, k, Places(ints, ints, ints), q, lse)
        lowered = traced.lower(lowering_platforms=("cuda",))
    assert "band_merge" in lowered.as_text()
