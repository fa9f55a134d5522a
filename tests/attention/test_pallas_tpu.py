"""The TPU kernel equals the reference in Pallas's TPU interpreter, visits no tile that it need not, and compiles with
the real TPU compiler, as do whole scoring programs. Each failure known of earlier systems has a test of its name.
"""

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import SingleDeviceSharding

from attention.packed_rows import Packed, packed_rows
from onepass.attention.base import Asking, Keys, RowShape
from onepass.attention.pallas_tpu import VMEM_BYTES, Heads, PallasTpu, choose_tiling
from onepass.attention.places import PADDING, Places, context_places, plain_causal, visible
from onepass.attention.reference import Reference, Rule
from onepass.attention.tiles import Tiling
from onepass.engine.lowering import Program
from onepass.engine.runner import Runner
from onepass.models.known import KNOWN, known_config
from onepass.models.weights import abstract, is_leaf
from onepass.parallel.topology import COMPILER_ONLY, Topology

SMALL = Tiling(asking=16, wide=16, narrow=8, asking_block=32, key_block=32)
SHAPE = RowShape(rows=2, prefix=40, context=24, items=56, band=16, readouts=1, labels=1)
V6E_BYTES = 32 << 30


@functools.cache
def interpreted(shape: RowShape, tiling: Tiling | None, rule: Rule = visible) -> Callable[..., Any]:
    attention = PallasTpu(rule=rule, tiling=tiling, interpret=pltpu.InterpretParams())
    return jax.jit(lambda asking, own, prefix: attention.full(asking, own, prefix, shape))


def filled(rows: Packed, shape: RowShape, heads: Heads, dtype: str, seed: int) -> tuple[Asking, Keys, Keys | None]:
    rng = np.random.default_rng(seed)

    def draw(tokens: int, *last: int) -> jax.Array:
        return jnp.array(rng.standard_normal((shape.rows, tokens, heads.kv_heads, *last)), dtype)

    n, d = shape.tokens, heads.head_dim
    own = Keys(draw(n, d), draw(n, d), rows.own)
    prefix = Keys(draw(shape.prefix, d), draw(shape.prefix, d), rows.prefix) if shape.prefix else None
    index = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (shape.rows, n))
    return Asking(draw(n, heads.group, d), rows.own, index), own, prefix


def compared(
    rows: Packed, shape: RowShape, heads: Heads, tiling: Tiling | None, dtype: str = "float32", seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel computes and what is right, for tokens that are not padding."""
    arguments = filled(rows, shape, heads, dtype, seed)
    got = np.asarray(interpreted(shape, tiling)(*arguments), np.float32)
    assert np.isfinite(got).all()
    wanted = np.asarray(Reference().full(*arguments, shape), np.float32)
    return got[rows.real], wanted[rows.real]


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=packed_rows(SHAPE), seed=st.integers(0, 2**31))
def test_the_kernel_equals_the_reference_over_ragged_rows(rows: Packed, seed: int) -> None:
    """Several blocks of tokens and of keys, wide tiles in which items begin, branches, empty rows and prefixes."""
    got, wanted = compared(rows, SHAPE, Heads(2, 2, 8), SMALL, seed=seed)
    np.testing.assert_allclose(got, wanted, atol=1e-5)


def whole_row(shape: RowShape, lengths: list[int]) -> Packed:
    """Full prefix and context, then items of these lengths, in every row."""
    start = shape.prefix + shape.context
    items = [(number, 0, start + i) for number, n in enumerate(lengths, 1) for i in range(n)]
    places = [(0, 0, shape.prefix + i) for i in range(shape.context)] + items
    places += [(PADDING, PADDING, 0)] * (shape.tokens - len(places))
    grid = np.broadcast_to(np.array(places, np.int32), (shape.rows, shape.tokens, 3))
    full = jnp.full(shape.rows, shape.prefix, jnp.int32)
    return Packed(Places(*(jnp.array(grid[..., i]) for i in range(3))), context_places(full, shape.prefix))


@pytest.mark.parametrize(
    ("heads", "dtype", "shape"),
    [
        (Heads(4, 2, 128), "bfloat16", RowShape(1, 128, 0, 128, 32, 1, 1)),
        (Heads(3, 3, 64), "bfloat16", RowShape(1, 0, 128, 128, 32, 1, 1)),
        (Heads(1, 2, 64), "float32", RowShape(2, 0, 200, 0, 1, 1, 1)),
    ],
    ids=str,
)
def test_the_kernel_equals_the_reference_at_its_own_tile_sizes(heads: Heads, dtype: str, shape: RowShape) -> None:
    lengths = [20, 1, 31, 7, 32, 12] if shape.items else []
    got, wanted = compared(whole_row(shape, lengths), shape, heads, None, dtype)
    if dtype == "float32":
        np.testing.assert_allclose(got, wanted, atol=1e-5)
    assert np.linalg.norm(got - wanted) <= 2e-2 * np.linalg.norm(wanted)


def test_without_the_rule_the_kernel_is_wrong() -> None:
    """The negative control: under a plain causal mask the comparison fails."""
    rows = whole_row(SHAPE, [10, 16, 12, 16])
    arguments = filled(rows, SHAPE, Heads(2, 2, 8), "float32", 0)
    wanted = np.asarray(Reference().full(*arguments, SHAPE))[rows.real]
    leaking = np.asarray(interpreted(SHAPE, SMALL, plain_causal)(*arguments))[rows.real]
    assert np.abs(leaking - wanted).max() > 0.1


def test_keys_that_nobody_sees_are_never_touched() -> None:
    """A tile of values that are not numbers spoils just those asking tiles that see a key of it: no other reads it."""
    rows = whole_row(SHAPE, [10, 16, 3, 16])
    asking, own, prefix = filled(rows, SHAPE, Heads(2, 2, 8), "float32", 0)
    seen = np.array(visible(rows.own, rows.own)) & rows.real[..., None]
    context = -(-SHAPE.context // SMALL.wide) * SMALL.wide
    tiles = [(0, 16), (16, 32), (32, 40), (56, 64), (72, 80)]
    for first, last in tiles:
        size = SMALL.asking if first < context else SMALL.narrow
        poisoned = Keys(own.k, own.v.at[:, first:last].set(jnp.nan), own.places)
        spoiled = np.isnan(np.asarray(interpreted(SHAPE, SMALL)(asking, poisoned, prefix))).any(axis=(2, 3, 4))
        for start in range(0, SHAPE.tokens, size):
            some = slice(start, start + size)
            expected = seen[:, some, first:last].any()
            real = rows.real[:, some]
            assert (spoiled[:, some][real] == expected).all(), (first, start)


# The real compiler. libtpu describes TPUs that are not here; it reads the environment when it is first asked.


@pytest.fixture(scope="module")
def v6e() -> Iterator[SingleDeviceSharding]:
    pytest.importorskip("libtpu")
    with pytest.MonkeyPatch.context() as patched:
        for name, value in COMPILER_ONLY.items():
            patched.setitem(os.environ, name, value)
        yield SingleDeviceSharding(Topology.parse("v6e:1x1").devices()[0])


def lowered_kernel(shape: RowShape, heads: Heads, where: SingleDeviceSharding, dtype: str = "bfloat16") -> Any:
    def of(*size: int, kind: str = dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((shape.rows, *size), jnp.dtype(kind), sharding=where)

    def run(q: Any, k: Any, v: Any, places: Places, prefix: Any) -> Any:
        before = Keys(*prefix[:2], context_places(prefix[2], shape.prefix)) if shape.prefix else None
        index = jnp.broadcast_to(jnp.arange(shape.tokens, dtype=jnp.int32), q.shape[:2])
        return PallasTpu().full(Asking(q, places, index), Keys(k, v, places), before, shape)

    n, kv, d = shape.tokens, heads.kv_heads, heads.head_dim
    places = Places(*(of(n, kind="int32") for _ in range(3)))
    before = of(shape.prefix, kv, d)
    traced = jax.jit(run).trace(
        of(n, kv, heads.group, d), of(n, kv, d), of(n, kv, d), places, (before, before, of(kind="int32"))
    )
    return traced.lower(lowering_platforms=("tpu",))


CONTRACT = RowShape(rows=1, prefix=0, context=2048, items=10240, band=32, readouts=512, labels=4)
EXTEND = replace(CONTRACT, prefix=2048, context=0)


def test_the_kernel_compiles_for_the_contract_workload(v6e: SingleDeviceSharding) -> None:
    lowered_kernel(EXTEND, Heads(8, 2, 128), v6e).compile()


def test_qwen2_5_with_two_kv_heads_compiles_without_a_fused_kv_reshape(v6e: SingleDeviceSharding) -> None:
    """Keys and values stay two arrays, and two heads of 128 (six or eight to a group) are enough."""
    for group in (6, 8):
        lowered_kernel(RowShape(1, 0, 512, 1280, 32, 64, 4), Heads(2, group, 128), v6e).compile()


def test_heads_of_64_compile(v6e: SingleDeviceSharding) -> None:
    """SmolLM2-135M: three KV heads, three to a group, and rows whose sizes are no whole tiles."""
    lowered_kernel(RowShape(2, 192, 80, 320, 64, 8, 4), Heads(3, 3, 64), v6e).compile()


def test_dense_masks_of_gigabytes_do_not_exist(v6e: SingleDeviceSharding) -> None:
    """2,000 items at once: a mask would take 1.8 GB; all temporaries stay within a few times the queries."""
    shape = replace(CONTRACT, items=40960)
    compiled = lowered_kernel(shape, Heads(2, 2, 64), v6e).compile()
    queries = shape.tokens * 4 * 128 * 2  # a head of 64 takes 128 lanes in memory
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * queries < shape.tokens**2 / 8


def kernel_of(shape: RowShape, heads: Heads) -> Any:
    """The kernel's own jaxpr, with its operands."""
    rows = whole_row(shape, [20] * (shape.items // 20))
    arguments = filled(rows, shape, heads, "bfloat16", 0)
    jaxpr = jax.make_jaxpr(lambda *a: PallasTpu().full(*a, shape))(*arguments)
    return next(e for e in _equations(jaxpr.jaxpr) if e.primitive.name == "pallas_call")


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


def test_no_integer_gather_that_mosaic_cannot_lower() -> None:
    kernel = kernel_of(RowShape(1, 128, 128, 128, 32, 1, 1), Heads(2, 2, 64))
    names = {equation.primitive.name for equation in _equations(kernel.params["jaxpr"])}
    assert {"dot_general", "while"} <= names, "the kernel's body was found"
    assert not names & {"gather", "scatter", "dynamic_slice", "sort", "take"}


def test_no_bool_mask_that_mosaic_truncates() -> None:
    """Nothing of type bool goes into the kernel: masks are made inside from integer places."""
    kernel = kernel_of(RowShape(1, 128, 128, 128, 32, 1, 1), Heads(2, 2, 64))
    kinds = {str(operand.aval.dtype) for operand in kernel.invars}
    assert kinds == {"bfloat16", "int32"}


def scoring_program(name: str, shape: RowShape, where: SingleDeviceSharding, **smaller: int) -> Any:
    """A whole scoring program, compiled from shapes alone."""
    config = replace(known_config(name), **smaller)
    weights = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), abstract(config), is_leaf=is_leaf
    )
    runner = Runner(config, weights, {"cascade": PallasTpu()}, background=False)
    program = Program("score", shape, "cascade")
    arguments = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=where), runner.lowering.arguments(program)
    )
    return jax.jit(runner.lowering.function(program)).trace(*arguments).lower(lowering_platforms=("tpu",)).compile()


def total_bytes(compiled: Any) -> int:
    memory = compiled.memory_analysis()
    return memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes


def test_a_whole_scoring_program_of_128_items_is_not_out_of_memory(v6e: SingleDeviceSharding) -> None:
    """Query 512, 128 items of 64 tokens, with Qwen3-0.6B's heads; all else is narrow, so that compiling takes half a
    minute of one core. The sizes as they are have a matrix of their own (`benchmarks/tpu_aot.py`)."""
    shape = RowShape(1, 512, 0, 8192, 64, 128, 4)
    smaller = {"num_layers": 3, "hidden_size": 256, "mlp_size": 512, "vocab_size": 4096}
    compiled = scoring_program("qwen3-0.6b", shape, v6e, **smaller)
    assert "scoring_attention" in compiled.as_text()
    assert compiled.memory_analysis().temp_size_in_bytes < 1 << 30
    assert total_bytes(compiled) < V6E_BYTES


@pytest.mark.parametrize("name", list(KNOWN))
@pytest.mark.parametrize(
    "shape",
    [
        CONTRACT,
        EXTEND,
        RowShape(1, 0, 16, 0, 1, 1, 4),
        RowShape(32, 96, 0, 512, 512, 8, 4),
        RowShape(1, 98304, 0, 16384, 64, 512, 4),
    ],
    ids=["packed", "extend", "tiny", "many rows", "long prefix"],
)
def test_block_sizes_fit_the_chip_for_every_model(name: str, shape: RowShape) -> None:
    config = known_config(name)
    heads = Heads(config.num_kv_heads, config.group, config.head_dim)
    tiling = choose_tiling(shape, heads, 2)
    assert tiling.asking_block <= max(1024, tiling.asking)
    keys = [min(size, tiling.key_block) for size in (shape.prefix, shape.tokens) if size]
    copied = 2 * 2 * 2 * sum(keys) * heads.together * heads.head_dim
    assert copied < VMEM_BYTES
    assert heads.kv_heads % heads.together == 0
    assert heads.together == heads.kv_heads or heads.in_step * heads.head_dim % 128 == 0
