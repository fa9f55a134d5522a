"""The Hopper attention equals the reference in Pallas's GPU interpreter, its table visits what the rule allows and no
more, its pool is written in place, and all of it lowers for a GPU that is not here.

Memory that no kernel wrote is NaN there: what is finite was computed. With ONEPASS_TEST_PLATFORM=cuda on such a machine
the same comparisons run compiled.
"""

import functools
import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from attention.steps import Case, Sequence, attended, case, random_sequences, real
from onepass.attention.base import KeyValues, KvPool, Step, StepShape, scatter
from onepass.attention.mask import visible
from onepass.attention.reference import Reference, all_keys
from onepass.kernels.hopper import attention_compute
from onepass.kernels.hopper.attention import HopperAttention
from onepass.kernels.hopper.attention_schedule import (
    BLOCKS,
    FINE,
    FIRST_ENTRY,
    KEYS,
    OWN_FROM,
    OWN_TILES,
    PARTS,
    SAFE,
    WHOLE,
    schedule_of,
)
from onepass.kernels.hopper.pool_write import write_groups, write_pool

ON_GPU = jax.default_backend() == "gpu"
INTERPRET: Any = (
    False if ON_GPU else plgpu.InterpretGPUParams(out_of_bounds_reads="uninitialized", uninitialized_memory="nan")
)
STEPS = {
    "one cold request": [Sequence(0, 170, ((5, ()), (12, (3, 2)), (1, ())))],
    "kept context": [Sequence(260, 0, ((20, ()), (20, ())))],
    "whole pages alone": [Sequence(256, 0, (), again=True)],
    "kept, then more": [Sequence(100, 160, ((7, ()),))],
    "no context": [Sequence(0, 0, ((40, ()), (130, (4,)), (2, ())))],
    "empty item on a kept context": [Sequence(129, 0, (), again=True), Sequence(128, 0, ((3, ()),), again=True)],
    "tiny requests": [Sequence(0, 3, ((2, ()),)) for _ in range(12)],
    "nothing": [],
}


def made(sequences: list[Sequence], heads: tuple[int, int, int] = (1, 2, 64), tokens: int = 512, **more: Any) -> Case:
    kv_heads, group, head_dim = heads
    sizes = {"kv_heads": kv_heads, "group": group, "head_dim": head_dim}
    return case(sequences, tokens, page=KEYS, dtype=jnp.bfloat16, **sizes, **more)


def kernel_of(group: int, **more: Any) -> HopperAttention:
    """Two programs for many tasks, so that each takes several."""
    return HopperAttention(2, group, interpret=INTERPRET, **more)


@functools.cache
def program(attention: Any, shape: StepShape) -> Any:
    """`steps.attended`, compiled once for steps of one shape."""

    @jax.jit
    def run(q: jax.Array, keys: KeyValues, step: Step) -> tuple[jax.Array, jax.Array, KvPool]:
        keys = replace(keys, pool=attention.write(keys.pool, keys.layer, keys.k, keys.v, step))
        some = step.queries.take(step.readouts, step.num_readouts)
        out, at_readouts = (
            attention.attend(part, keys, asking, step, shape, attention.prepare(asking, step, shape))
            for part, asking in ((q, step.queries), (q[step.readouts], some))
        )
        return out, at_readouts, keys.pool

    return run


def computed(attention: Any, step: Case) -> tuple[jax.Array, jax.Array, KvPool]:
    return program(attention, step.shape)(step.q, step.keys, step.step)


def check(step: Case, group: int) -> None:
    expected, got = computed(Reference(page=KEYS), step), computed(kernel_of(group), step)
    for n, at_readouts in ((0, False), (1, True)):
        one, other = (real(step, out[n], at_readouts) for out in (got, expected))
        np.testing.assert_allclose(one, other, atol=2e-2)
        assert np.linalg.norm(one - other) <= 1e-2 * np.linalg.norm(other)
    for one, other in zip(jax.tree.leaves(got[2]), jax.tree.leaves(expected[2]), strict=True):
        np.testing.assert_array_equal(one, other)
    if not ON_GPU:
        count = int(step.step.queries.count)
        numbers = np.isfinite(np.asarray(got[0], np.float32)).all(axis=(1, 2, 3))
        wanted = -(-count // SAFE) * SAFE
        assert numbers[:wanted].all(), "own keys that nobody sees are multiplied by 0, and must be numbers"
        assert not numbers[wanted:].any(), "padding was computed"


@pytest.mark.parametrize("name", STEPS)
def test_the_kernel_equals_the_reference(name: str) -> None:
    check(made(STEPS[name]), 2)


@pytest.mark.parametrize("heads", [(2, 2, 128), (1, 3, 64), (1, 4, 128), (2, 1, 64)], ids=str)
def test_every_grouping_of_heads_and_both_sizes(heads: tuple[int, int, int]) -> None:
    """Even groups share a task between two heads, odd ones between two blocks of tokens."""
    check(made([Sequence(0, 145, ((20, ()), (1, ()))), Sequence(130, 0, ((33, (5, 5)), (50, ())))], heads), heads[1])


@pytest.mark.parametrize("seed", range(20 if ON_GPU else 2))
def test_the_kernel_equals_the_reference_on_random_steps(seed: int) -> None:
    sequences = random_sequences(np.random.default_rng(seed), 5, 200)
    tokens = 512 * (2 + 2 * ON_GPU)
    check(made(sequences, tokens=tokens, entries=64, pages=80, seed=seed), 2)


def test_the_comparison_fails_with_another_layer_s_pages() -> None:
    """Keys are read where those of all layers lie."""
    step = made([Sequence(260, 0, ((20, ()), (20, ())))], layers=3)
    wanted = real(step, computed(Reference(page=KEYS), step)[0])

    def differs(layer: int) -> bool:
        moved = replace(step, keys=replace(step.keys, layer=jnp.int32(layer)))
        return bool(np.abs(real(step, computed(kernel_of(2), moved)[0]) - wanted).max() > 0.1)

    assert [differs(layer) for layer in range(3)] == [True, False, True]


def test_the_comparison_fails_when_the_rule_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: were masked tiles not masked, it would show."""
    monkeypatch.setattr(attention_compute, "sees", lambda asking, key: key.position >= -1)
    step = made([Sequence(0, 60, ((20, ()), (20, ())))])
    got, wanted = (real(step, attended(which, step)[0]) for which in (kernel_of(2), Reference(page=KEYS)))
    assert np.abs(got - wanted).max() > 0.1


def test_other_requests_of_the_step_change_nothing() -> None:
    """Same lengths, every number of theirs another one: exactly the same results."""
    step = made([Sequence(0, 100, ((20, ()),)), Sequence(130, 10, ((33, (5,)), (50, ())))])
    before = real(step, computed(kernel_of(2), step)[0])[:120]
    second = jnp.arange(512) >= 120
    theirs = np.asarray(step.step.pages.page)[1:3]

    def other(a: jax.Array) -> jax.Array:
        return jnp.where(second.reshape(-1, *[1] * (a.ndim - 1)), a + 1, a)

    pool = jax.tree.map(lambda a: a.at[:, theirs].add(1), step.keys.pool)
    keys = KeyValues(other(step.keys.k), other(step.keys.v), pool, step.keys.layer)
    after = real(step, computed(kernel_of(2), replace(step, q=other(step.q), keys=keys))[0])
    np.testing.assert_array_equal(after[:120], before)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_results_in_eight_bits_are_the_same_rounded(head_dim: int) -> None:
    step = made([Sequence(0, 145, ((20, ()), (1, ())))], (1, 2, head_dim))
    got = real(step, computed(kernel_of(2, narrow=jnp.float8_e4m3fn), step)[0])
    wanted = real(step, computed(Reference(page=KEYS), step)[0])
    assert np.abs(got - wanted).max() <= 0.07 * np.abs(wanted).max()
    rounded = np.asarray(jnp.array(wanted).astype(jnp.float8_e4m3fn), np.float32)
    assert np.mean(got == rounded) > 0.9, "but for neighbours"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("at_readouts", [False, True], ids=["all", "readouts"])
def test_the_table_visits_every_key_that_is_seen_once_and_whole_tiles_need_no_mask(
    seed: int, block: int, at_readouts: bool
) -> None:
    sequences = random_sequences(np.random.default_rng(seed), 6, 400)
    step = made(sequences, (1, 1, 8), 4096, entries=64, pages=80, seed=seed).step
    queries = step.queries.take(step.readouts, step.num_readouts) if at_readouts else step.queries
    schedule, entries = schedule_of(queries, step, block), step.pages.page.shape[0]
    table, count = np.asarray(schedule.table), int(queries.count)
    blocks, last = table[0, BLOCKS], -(-int(step.queries.count) // SAFE) * SAFE
    assert blocks * block == min(-(-count // SAFE) * SAFE, len(table[1:]) * block)
    seen = np.asarray(visible(schedule.asking, schedule.keys))
    for number in range(blocks):
        line, some = table[1 + number], seen[number * block : (number + 1) * block]
        here = np.asarray(schedule.asking.segment)[number * block : (number + 1) * block] >= 0
        assert line[PARTS] + line[OWN_TILES] > 0, "the kernel takes a task's first tile to be a masked one"
        visits = np.zeros(seen.shape[1], int)
        first, whole, own = line[FIRST_ENTRY], line[WHOLE], entries * KEYS + line[OWN_FROM]
        assert some[here][:, first * KEYS : (first + whole) * KEYS].all(), "a whole tile has a key that is not seen"
        visits[first * KEYS : (first + whole + line[PARTS]) * KEYS] += 1
        visits[own : own + line[OWN_TILES] * KEYS] += 1
        assert line[OWN_FROM] % FINE == 0
        assert line[OWN_FROM] + line[OWN_TILES] * KEYS <= last, "keys beyond the last computed token are not numbers"
        wanted = some.any(axis=0)
        assert (visits[wanted] == 1).all(), "keys are missed or counted twice"
        if here.any():
            _no_tile_for_nothing(line, wanted, entries)


def _no_tile_for_nothing(line: np.ndarray, seen: np.ndarray, entries: int) -> None:
    """As many tiles as hold what is seen, the step's own counted from where the first of them begins."""
    pages = np.flatnonzero(seen[: entries * KEYS].reshape(entries, KEYS).any(axis=1))
    assert line[WHOLE] + line[PARTS] == (pages[-1] + 1 - pages[0] if len(pages) else 0)
    own = np.flatnonzero(seen[entries * KEYS :])
    span = own[-1] // FINE * FINE + FINE - own[0] // FINE * FINE if len(own) else 0
    # What a token may see begins with its item, which another's branch lies in, too: at most a tile more.
    assert -(-span // KEYS) <= line[OWN_TILES] <= -(-span // KEYS) + 1


def test_every_layer_of_a_scan_is_written_in_place_and_nothing_else() -> None:
    """Also where what lies beyond the last real token is no number."""
    step = made(
        [Sequence(0, 150, ((20, ()), (20, ()))), Sequence(30, 9), Sequence(0, 0, ((5, ()),))], (2, 1, 64), layers=3
    )
    k, v = (a.at[int(step.step.queries.count) :].set(jnp.nan) for a in (step.keys.k, step.keys.v))
    groups = write_groups(step.step.slots)

    def all_layers(write: Any) -> KvPool:
        def layer(pool: KvPool, at: jax.Array) -> tuple[KvPool, None]:
            return write(pool, at, k + at.astype(k.dtype), v), None

        return jax.jit(lambda pool: jax.lax.scan(layer, pool, jnp.arange(3, dtype=jnp.int32))[0])(step.keys.pool)

    got = all_layers(lambda *given: write_pool(*given, step.step.slots, groups, 1, INTERPRET))
    wanted = all_layers(lambda *given: scatter(*given, step.step.slots))
    np.testing.assert_array_equal(got.k, wanted.k)
    np.testing.assert_array_equal(got.v, wanted.v)
    assert not np.array_equal(got.k, step.keys.pool.k)


@pytest.mark.skipif(ON_GPU, reason="there it is compiled")
@pytest.mark.parametrize(("head_dim", "group"), [(64, 3), (128, 2)])
@pytest.mark.parametrize("narrow", [None, jnp.float8_e4m3fn], ids=["wide", "narrow"])
def test_the_kernels_lower_for_a_gpu_that_is_not_here(narrow: Any, head_dim: int, group: int) -> None:
    """And the pool that is written is the one that came in."""
    step = made([Sequence(0, 145, ((20, ()), (1, ())))], (2, group, head_dim))
    attention = HopperAttention(132, group, narrow)

    def layers(q: jax.Array, keys: KeyValues, step: Any) -> tuple[KvPool, jax.Array]:
        queries = step.queries
        prepared = attention.prepare(queries, step, made_shape)

        def layer(pool: KvPool, at: jax.Array) -> tuple[KvPool, jax.Array]:
            pool = attention.write(pool, at, keys.k, keys.v, step, prepared)
            now = KeyValues(keys.k, keys.v, pool, at)
            return pool, attention.attend(q, now, queries, step, made_shape, prepared)

        return jax.lax.scan(layer, keys.pool, jnp.arange(2, dtype=jnp.int32))

    made_shape = step.shape
    traced = jax.jit(layers).trace(step.q, step.keys, step.step)
    said = re.findall(r"griddepcontrol_(wait|launch_dependents)", str(traced.jaxpr))
    assert said == ["wait", "launch_dependents"] * 2, "each of the two waits before the next may begin"
    lowered = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert lowered.count("@mosaic_gpu") == 2
    assert len(re.findall(r"output_operand_alias<", lowered)) == 2, "keys and values"


def test_wrong_sizes_are_refused() -> None:
    step, attention = made([], tokens=512), kernel_of(2)
    queries, wrong = step.step.queries, replace(step.shape, page=64)
    prepared = attention.prepare(queries, step.step, wrong)
    with pytest.raises(ValueError, match="pages of 128"):
        attention.attend(step.q, step.keys, queries, step.step, wrong, prepared)


def test_the_reference_reads_what_the_kernel_reads() -> None:
    """Keys in the order of the schedule's places."""
    step = made([Sequence(130, 10, ((33, (5,)), (50, ())))], (1, 1, 64))
    places = all_keys(step.keys, step.step, step.shape)[2]
    schedule = schedule_of(step.step.queries, step.step, 64)
    np.testing.assert_array_equal(schedule.keys.segment, places.segment)
