"""The TPU kernel in Pallas's TPU interpreter, traced once for each shape: that is what takes the time."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from attention.steps import Case, attended, real
from onepass.attention.base import KvPool, StepShape
from onepass.attention.mask import sees
from onepass.attention.reference import Reference
from onepass.kernels.tpu.attention import TpuAttention
from onepass.kernels.tpu.walk import Rule


@functools.cache
def program(shape: StepShape, rule: Rule = sees) -> Callable[..., Any]:
    """(q, keys, step) → of all tokens, of the read-outs, the pool; blocks of 256, so that a step has several."""
    attention = TpuAttention(rule=rule, interpret=pltpu.InterpretParams(), most_block=256)

    @jax.jit
    def run(q, keys, step):
        pool = attention.write(keys.pool, keys.layer, keys.k, keys.v, step)
        keys = replace(keys, pool=pool)
        some = step.queries.take(step.readouts, step.num_readouts)
        out = [
            attention.attend(part, keys, asking, step, shape, attention.prepare(asking, step, shape))
            for part, asking in ((q, step.queries), (q[step.readouts], some))
        ]
        return out[0], out[1], pool

    return run


def check(made: Case, tolerance: float = 1e-5) -> None:
    """Tokens, read-outs and pool are those of the definition; padding is finite."""
    expected: tuple[jax.Array, jax.Array, KvPool] = attended(Reference(page=made.shape.page), made)
    got = program(made.shape)(made.q, made.keys, made.step)
    for which, at_readouts in enumerate((False, True)):
        a, b = (real(made, out[which], at_readouts) for out in (got, expected))
        if made.q.dtype == "float32":
            np.testing.assert_allclose(a, b, atol=tolerance)
        assert np.linalg.norm(a - b) <= tolerance * max(1.0, np.linalg.norm(b))
        assert np.isfinite(np.asarray(got[which], np.float32)).all()
    for kept, wanted in zip(jax.tree.leaves(got[2]), jax.tree.leaves(expected[2]), strict=True):
        np.testing.assert_array_equal(np.asarray(kept, np.float32), np.asarray(wanted, np.float32))
