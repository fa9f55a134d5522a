"""What the tests of both CPU attentions share: steps, programs that are compiled once, and the checks themselves."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.steps import Case, Sequence, case, random_sequences, real
from onepass.attention.base import KeyValues, KvPool, StepShape
from onepass.attention.reference import Reference

TOLERANCE = {jnp.float32: 2e-6, jnp.bfloat16: 1e-2}
TOKENS = 256


@functools.cache
def program(attention: Any, shape: StepShape) -> Callable[..., Any]:
    """Written, then asked by all tokens and by the read-outs, as the decoder does it."""

    @jax.jit
    def run(q, keys, step):
        keys = replace(keys, pool=attention.write(keys.pool, keys.layer, keys.k, keys.v, step))
        some = step.queries.take(step.readouts, step.num_readouts)
        out = [
            attention.attend(part, keys, asking, step, shape, attention.prepare(asking, step, shape))
            for part, asking in ((q, step.queries), (q[step.readouts], some))
        ]
        return out[0], out[1], keys.pool

    return run


def attended(attention: Any, step_case: Case) -> tuple[jax.Array, jax.Array, KvPool]:
    return program(attention, step_case.shape)(step_case.q, step_case.keys, step_case.step)


def check_equals_reference(attention: Any, sequences: list[Sequence], dtype: Any, **sizes: Any) -> None:
    step_case = case(sequences, TOKENS, dtype=dtype, **sizes)
    expected, result = attended(Reference(), step_case), attended(attention, step_case)
    for got, wanted, at_readouts in zip(result[:2], expected[:2], (False, True), strict=True):
        assert np.isfinite(np.asarray(got, np.float32)).all(), "padding too"
        want = real(step_case, wanted, at_readouts)
        assert np.linalg.norm(real(step_case, got, at_readouts) - want) <= TOLERANCE[dtype] * np.linalg.norm(want)
    for got, wanted in zip(jax.tree.leaves(result[2]), jax.tree.leaves(expected[2]), strict=True):
        np.testing.assert_array_equal(got, wanted)


def small_random_sequences(seed: int) -> list[Sequence]:
    """As many as fit."""
    sequences: list[Sequence] = []
    for sequence in random_sequences(np.random.default_rng(seed), 12, longest=150):
        if _tokens([*sequences, sequence]) <= TOKENS:
            sequences.append(sequence)
    return sequences


def _tokens(sequences: list[Sequence]) -> int:
    return sum(s.new + s.again + sum(item + sum(branches) for item, branches in s.items) for s in sequences)


NEIGHBOURS = [
    Sequence(70, 10, ((5, ()), (9, (3, 2)))),
    Sequence(0, 33, ((20, ()), (4, ()))),
    Sequence(129, 0, ((7, (1,)),), again=True),
    Sequence(0, 0, ((11, ()),)),
]


def check_other_sequences_change_nothing(attention: Any, dtype: Any, **sizes: Any) -> None:
    """Every number of every other sequence is replaced: exactly 0 difference. The control: the others do change."""
    before = case(NEIGHBOURS, TOKENS, dtype=dtype, **sizes)
    other = case(NEIGHBOURS, TOKENS, dtype=dtype, seed=1, **sizes)  # other numbers and, once more, other pages
    context = np.asarray(before.step.queries.places.context)
    result = np.asarray(attended(attention, before)[0], np.float32)
    for sequence in range(len(NEIGHBOURS)):
        table = before.step.pages
        pages = np.asarray(table.page)[np.asarray(table.context) == sequence]
        mine, kept = jnp.asarray(context == sequence), jnp.zeros(before.keys.pool.k.shape[1], bool).at[pages].set(True)

        def mixed(a: jax.Array, b: jax.Array, mine: jax.Array = mine) -> jax.Array:
            return jnp.where(mine.reshape(-1, *[1] * (a.ndim - 1)), a, b)

        pool = jax.tree.map(
            lambda a, b, kept=kept: jnp.where(kept[None, :, None, None, None], a, b), before.keys.pool, other.keys.pool
        )
        keys = KeyValues(
            mixed(before.keys.k, other.keys.k), mixed(before.keys.v, other.keys.v), pool, before.keys.layer
        )
        changed = replace(before, q=mixed(before.q, other.q), keys=keys)
        after = np.asarray(attended(attention, changed)[0], np.float32)
        same = (result == after).all(axis=(1, 2, 3))
        assert same[context == sequence].all()
        assert not same[(context != sequence) & (context >= 0)].any()
