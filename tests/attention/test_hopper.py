"""The Hopper kernel equals the reference in Pallas's GPU interpreter, its table visits what the rule allows and no
more, and it lowers for a GPU that is not here.

With ONEPASS_TEST_PLATFORM=cuda on such a machine the same comparison runs compiled.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.experimental.pallas import mosaic_gpu as plgpu

from attention.packed_rows import Packed, packed_rows
from onepass.attention import hopper_computing
from onepass.attention.base import Asking, Keys, RowShape
from onepass.attention.hopper import Hopper
from onepass.attention.hopper_plan import (
    CONTEXT_FULL,
    CONTEXT_PARTS,
    FINE,
    ITEM_TILES,
    ITEMS_FROM,
    KEYS,
    PREFIX_FULL,
    PREFIX_PARTS,
    plan_of,
)
from onepass.attention.places import Places, context_places, visible
from onepass.attention.reference import Reference
from onepass.models.heads_gpu import finished_heads
from onepass.models.known import KNOWN
from onepass.models.layers import finish_k, finish_q
from onepass.models.weights import Layers

ON_GPU = jax.default_backend() == "gpu"
# A row ends within a block of its tokens.
SHAPE = RowShape(rows=2, prefix=192, context=80, items=192, band=64, readouts=1, labels=1)
EXAMPLES = 40 if ON_GPU else 3


@functools.cache
def computed(shape: RowShape, group: int, narrow: Any = None) -> Callable[..., Any]:
    """Two programs for many pieces of work, so that each takes several."""
    interpret = (
        False if ON_GPU else plgpu.InterpretGPUParams(out_of_bounds_reads="uninitialized", uninitialized_memory="zero")
    )
    attention = Hopper(2, group, narrow, interpret=interpret)
    return jax.jit(lambda asking, own, prefix: attention.full(asking, own, prefix, shape))


def compared(
    rows: Packed, shape: RowShape, heads: tuple[int, int, int], seed: int = 0, narrow: Any = None, layer: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel computes with a layer's prefix, and what is right for the second of three layers, for tokens that
    are not padding."""
    rng = np.random.default_rng(seed)
    kv_heads, group, head_dim = heads

    def draw(tokens: int, *last: int) -> jax.Array:
        return jnp.array(rng.standard_normal((shape.rows, tokens, kv_heads, *last)), jnp.bfloat16)

    n = shape.tokens
    own = Keys(draw(n, head_dim), draw(n, head_dim), rows.own)
    stack = [jnp.stack([draw(shape.prefix, head_dim) for _ in range(3)]) for _ in range(2)]
    given, right = (Keys(*stack, rows.prefix, jnp.int32(which)) if shape.prefix else None for which in (layer, 1))
    index = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (shape.rows, n))
    asking = Asking(draw(n, group, head_dim), rows.own, index)
    got = np.asarray(computed(shape, group, narrow)(asking, own, given), np.float32)
    assert np.isfinite(got).all(), "padding must be numbers, too: it is multiplied by weights of 0 in the next layer"
    wanted = np.asarray(Reference().full(asking, own, right and right.picked(), shape), np.float32)
    return got[rows.real], wanted[rows.real]


def rows_of(shape: RowShape, prefix: int, context: int, lengths: list[int]) -> Packed:
    places = np.full((shape.rows, shape.tokens, 3), (-1, -1, 0), np.int32)
    places[:, :context] = [(0, 0, prefix + i) for i in range(context)] or np.zeros((0, 3))
    at = shape.context
    for number, length in enumerate(lengths):
        places[:, at : at + length] = [(number + 1, 0, prefix + context + i) for i in range(length)]
        at += length
    own = Places(*(jnp.array(places[..., i]) for i in range(3)))
    return Packed(own, context_places(jnp.full(shape.rows, prefix, jnp.int32), shape.prefix))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=packed_rows(SHAPE), seed=st.integers(0, 2**31))
def test_the_kernel_equals_the_reference_over_ragged_rows(rows: Packed, seed: int) -> None:
    """Several pieces a program, branches, empty rows and prefixes; items begin within a tile of context."""
    got, wanted = compared(rows, SHAPE, (1, 2, 64), seed)
    np.testing.assert_allclose(got, wanted, atol=2e-2)


@pytest.mark.parametrize(
    ("heads", "with_prefix"), [((2, 2, 128), True), ((1, 3, 64), True), ((1, 4, 128), False), ((1, 1, 64), False)]
)
def test_every_grouping_of_heads_and_both_sizes(heads: tuple[int, int, int], with_prefix: bool) -> None:
    """Even groups share a piece between two heads, odd ones between two blocks of tokens."""
    shape = RowShape(1, 192 if with_prefix else 0, 0 if with_prefix else 160, 112, 64, 1, 1)
    rows = rows_of(shape, 150 if with_prefix else 0, 0 if with_prefix else 145, [20, 1, 33, 50])
    got, wanted = compared(rows, shape, heads)
    np.testing.assert_allclose(got, wanted, atol=2e-2)


def test_the_comparison_fails_with_another_layer_s_prefix() -> None:
    """Keys are read where those of all layers lie."""
    shape = RowShape(2, 192, 0, 112, 64, 1, 1)
    rows = rows_of(shape, 150, 0, [20, 1, 33, 50])
    differ = [np.abs(np.subtract(*compared(rows, shape, (1, 2, 64), layer=n))).max() > 0.1 for n in range(3)]
    assert differ == [True, False, True]


def test_the_comparison_fails_when_the_rule_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: were masked tiles not masked, it would show."""
    monkeypatch.setattr(hopper_computing, "sees", lambda asking, key: key.position >= -1)
    shape = RowShape(1, 0, 64, 48, 32, 1, 1)
    computed.cache_clear()
    got, wanted = compared(rows_of(shape, 0, 60, [20, 20]), shape, (1, 2, 64))
    computed.cache_clear()
    assert np.abs(got - wanted).max() > 0.1


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=packed_rows(SHAPE), block=st.sampled_from([64, 128]))
def test_the_table_visits_every_key_that_is_seen_once_and_full_tiles_need_no_mask(rows: Packed, block: int) -> None:
    plan = plan_of(rows.own, rows.prefix, SHAPE, block)
    table, asking = np.asarray(plan.table), plan.asking
    in_prefix = np.asarray(visible(asking, rows.prefix))
    in_row = np.asarray(visible(asking, rows.own))
    real = np.asarray(asking.segment) >= 0
    for row, number in np.ndindex(*table.shape[:2]):
        line, some = table[row, number], slice(number * block, (number + 1) * block)
        here = real[row, some]
        assert line[PREFIX_PARTS:ITEMS_FROM].sum() > 0, "the kernel takes a piece's first tile to be a masked one"
        seen = {"prefix": in_prefix[row, some][here], "row": in_row[row, some][here]}
        counted = {name: np.zeros(a.shape[1] + 4 * KEYS, int) for name, a in seen.items()}
        for name, full, parts in (("prefix", PREFIX_FULL, PREFIX_PARTS), ("row", CONTEXT_FULL, CONTEXT_PARTS)):
            assert seen[name][:, : line[full] * KEYS].all(), "a full tile has a key that is not seen"
            counted[name][: (line[full] + line[parts]) * KEYS] += 1
        counted["row"][SHAPE.context :] = 0  # as context, the row's items are padding
        begin = line[ITEMS_FROM]
        counted["row"][max(begin, SHAPE.context) : begin + line[ITEM_TILES] * KEYS] += 1
        for name, a in seen.items():
            wanted = a.any(axis=0)
            assert (counted[name][: len(wanted)][wanted] == 1).all(), f"keys of the {name} are missed or counted twice"
        if here.any():
            _no_tile_for_nothing(line, seen["prefix"], seen["row"])


def _no_tile_for_nothing(line: np.ndarray, prefix: np.ndarray, row: np.ndarray) -> None:
    """As many tiles as hold what is seen, the items' counted from where the first of them begins."""
    items = np.flatnonzero(row[:, SHAPE.context :].any(axis=0)) + SHAPE.context
    span = items[-1] // FINE * FINE + FINE - items[0] // FINE * FINE if len(items) else 0
    assert line[ITEM_TILES] == -(-span // KEYS)
    for full, parts, seen in (
        (PREFIX_FULL, PREFIX_PARTS, prefix),
        (CONTEXT_FULL, CONTEXT_PARTS, row[:, : SHAPE.context]),
    ):
        assert line[full] + line[parts] == -(-int(seen.any(axis=0).sum()) // KEYS)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_results_in_eight_bits_are_the_same_rounded(head_dim: int) -> None:
    got, wanted = compared(rows_of(SHAPE, 150, 70, [20] * 8), SHAPE, (1, 2, head_dim), narrow=jnp.float8_e4m3fn)
    assert np.abs(got - wanted).max() <= 0.07 * np.abs(wanted).max()
    rounded = np.asarray(jnp.array(wanted).astype(jnp.float8_e4m3fn), np.float32)
    assert np.mean(got == rounded) > 0.9, "but for neighbours"


@pytest.mark.skipif(ON_GPU, reason="there it is compiled")
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("narrow", [None, jnp.float8_e4m3fn], ids=["wide", "narrow"])
def test_the_kernel_lowers_for_a_gpu_that_is_not_here(narrow: Any, head_dim: int) -> None:
    shape = RowShape(2, 192, 80, 176, 64, 1, 1)
    places = rows_of(shape, 150, 70, [20] * 8)

    def attend(q: jax.Array, k: jax.Array) -> jax.Array:
        index = jnp.zeros(q.shape[:2], jnp.int32)
        prefix = Keys(k[:, : shape.prefix], k[:, : shape.prefix], places.prefix)
        return Hopper(132, 2, narrow).full(Asking(q, places.own, index), Keys(k, k, places.own), prefix, shape)

    q = jnp.zeros((2, shape.tokens, 8, 2, head_dim), jnp.bfloat16)
    text = jax.jit(attend).trace(q, q[:, :, :, 0]).lower(lowering_platforms=("cuda",)).as_text()
    assert "mosaic_gpu" in text


@pytest.mark.parametrize(("normed", "head_dim", "tokens"), [(True, 128, 48), (True, 64, 64), (False, 64, 32)])
def test_heads_finished_in_one_pass_equal_those_finished_in_parts(normed: bool, head_dim: int, tokens: int) -> None:
    config = KNOWN["qwen3-0.6b"]
    keys = jax.random.split(jax.random.key(0), 3)
    fused = jax.random.normal(keys[0], (2, tokens, 2, 4, head_dim), jnp.bfloat16)
    norms = [jax.random.normal(key, (head_dim,), jnp.bfloat16) if normed else None for key in keys[1:]]
    layer = Layers(**{**dict.fromkeys(Layers.__dataclass_fields__), "q_norm": norms[0], "k_norm": norms[1]})
    turned = jnp.arange(2 * tokens).reshape(2, tokens)[..., None] * jnp.linspace(0.01, 1, head_dim // 2)
    angles = jnp.cos(turned), jnp.sin(turned)
    got = finished_heads(fused, angles, *norms, config.rms_eps, interpret=not ON_GPU)
    wanted = finish_q(config, layer, fused[:, :, :, :2], angles), finish_k(config, layer, fused[:, :, :, 2], angles)
    for one, other in zip(got, (*wanted, fused[:, :, :, 3]), strict=True):
        one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
        np.testing.assert_allclose(one, other, atol=2e-2, rtol=2e-2)
    moved = finished_heads(fused, tuple(a[:, ::-1] for a in angles), *norms, config.rms_eps, interpret=not ON_GPU)
    assert np.abs(np.asarray(moved[0], np.float32) - np.asarray(wanted[0], np.float32)).max() > 0.1
