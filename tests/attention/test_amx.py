"""The C++ attention equals the reference on ragged rows, says by the rule what is seen, and keeps items apart to the
last bit. Where there is no AMX only what is seen can be tested."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention.packed_rows import Packed, packed_rows
from onepass.attention.amx import BLOCK, Amx, Seen, seen_of, takes
from onepass.attention.base import Asking, Keys, RowShape
from onepass.attention.cascade import Cascade
from onepass.attention.places import visible
from onepass.attention.reference import Reference
from onepass.native import build

needs_amx = pytest.mark.skipif(build.problem() is not None, reason=str(build.problem()))

SHAPES = [
    RowShape(rows=2, prefix=96, context=80, items=176, band=64, readouts=1, labels=1),
    RowShape(rows=1, prefix=0, context=112, items=48, band=16, readouts=1, labels=1),
    RowShape(rows=3, prefix=64, context=0, items=320, band=32, readouts=1, labels=1),
    RowShape(rows=1, prefix=0, context=0, items=16, band=16, readouts=1, labels=1),
    RowShape(rows=1, prefix=320, context=48, items=0, band=1, readouts=1, labels=1),
]


@functools.cache
def computed(shape: RowShape) -> Callable[..., Any]:
    build.load()
    return jax.jit(lambda asking, own, prefix: Amx().full(asking, own, prefix, shape))


def drawn(
    rows: Packed, shape: RowShape, heads: tuple[int, int, int], seed: int, dtype: Any = jnp.bfloat16
) -> tuple[Asking, Keys, Keys | None]:
    rng = np.random.default_rng(seed)
    kv_heads, group, size = heads

    def numbers(*axes: int) -> jax.Array:
        return jnp.asarray(2 * rng.standard_normal(axes), dtype)

    index = jnp.broadcast_to(jnp.arange(shape.tokens, dtype=jnp.int32), rows.own.segment.shape)
    asking = Asking(numbers(shape.rows, shape.tokens, kv_heads, group, size), rows.own, index)
    own = Keys(*(numbers(shape.rows, shape.tokens, kv_heads, size) for _ in range(2)), rows.own)
    prefix = Keys(*(numbers(shape.rows, shape.prefix, kv_heads, size) for _ in range(2)), rows.prefix)
    return asking, own, prefix if shape.prefix else None


@needs_amx
@pytest.mark.parametrize(("dtype", "most"), [(jnp.bfloat16, 5e-3), (jnp.float32, 2e-6)], ids=["bf16", "f32"])
@pytest.mark.parametrize("heads", [(3, 3, 64), (1, 4, 128), (2, 1, 32)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_it_equals_the_reference(
    shape: RowShape, heads: tuple[int, int, int], dtype: Any, most: float, data: st.DataObject
) -> None:
    rows = data.draw(packed_rows(shape))
    work = drawn(rows, shape, heads, data.draw(st.integers(0, 99)), dtype)
    found = np.asarray(computed(shape)(*work), np.float32)
    right = np.asarray(Reference().full(*work, shape), np.float32)
    assert np.isfinite(found).all()
    difference = (found - right)[rows.real]
    assert np.linalg.norm(difference) <= most * np.linalg.norm(right[rows.real])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_every_key_that_may_be_seen_is_counted_once(shape: RowShape, data: st.DataObject) -> None:
    rows = data.draw(packed_rows(shape))
    seen = seen_of(rows.own, rows.prefix if shape.prefix else None, shape)
    for row in range(shape.rows):
        assert np.array_equal(counted(seen, row, shape)[rows.real[row]], allowed(rows, row)[rows.real[row]])


def allowed(rows: Packed, row: int) -> np.ndarray:
    """How many keys each token of a row sees, by the rule."""
    own, prefix = (jax.tree.map(lambda a: a[row], places) for places in (rows.own, rows.prefix))
    return np.asarray(visible(own, own).sum(axis=-1) + visible(own, prefix).sum(axis=-1))


def counted(seen: Seen, row: int, shape: RowShape) -> np.ndarray:
    """How many keys the kernel is told of."""
    bits = np.unpackbits(np.asarray(seen.bits[row]).view(np.uint8), axis=-1).sum(axis=-1)  # [blocks, 32]
    each = np.asarray(seen.prefix[row] + seen.whole[row])[:, None] + bits
    of_context = -(-shape.context // BLOCK)
    parts = each[:of_context].ravel()[: shape.context], each[of_context:].ravel()[: shape.items]
    return np.concatenate(parts)


@needs_amx
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32], ids=["bf16", "f32"])
def test_changing_an_item_changes_no_bit_of_the_others(dtype: Any) -> None:
    """With a control: the item itself changes."""
    shape = SHAPES[0]
    places = [(0, 0, i) for i in range(80)] + [(1 + i // 20, 0, 80 + i % 20) for i in range(160)] + [(-1, 0, 0)] * 16
    grid = jnp.asarray([places, places], jnp.int32)
    rows = Packed(*(jax.tree.map(jnp.asarray, p) for p in (_places(grid), _places(grid[:, :96]))))
    asking, own, prefix = drawn(rows, shape, (3, 3, 64), 0, dtype)
    before = np.asarray(computed(shape)(asking, own, prefix), np.float32)
    for item in range(8):
        at = slice(80 + 20 * item, 100 + 20 * item)
        other = Keys(own.k.at[:, at].multiply(-3), own.v.at[:, at].add(7), own.places)
        after = np.asarray(computed(shape)(asking, other, prefix), np.float32)
        changed = (before != after).any(axis=(0, 2, 3, 4))
        assert changed[at].all()
        assert not np.delete(changed[:240], np.arange(80 + 20 * item, 100 + 20 * item)).any()


def _places(grid: jax.Array) -> Any:
    from onepass.attention.places import Places

    return Places(*(grid[..., i] for i in range(3)))


def test_rows_that_are_not_in_sixteens_are_cascades() -> None:
    shape = RowShape(rows=1, prefix=0, context=24, items=8, band=8, readouts=1, labels=1)
    assert not takes(shape)
    grid = jnp.asarray([[(0, 0, i) for i in range(24)] + [(1, 0, 24 + i) for i in range(8)]], jnp.int32)
    asking, own, _ = drawn(Packed(_places(grid), _places(grid[:, :0])), shape, (1, 2, 64), 0)
    assert Amx().prepare(own.places, None, shape) is None
    assert np.array_equal(Amx().full(asking, own, None, shape), Cascade().full(asking, own, None, shape))
