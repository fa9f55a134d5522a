"""The plain XLA attention against the definition, on random flat steps."""

import numpy as np
import pytest

from attention.steps import Sequence, attended, case, random_sequences, real
from onepass.attention.reference import Reference
from onepass.attention.xla import Xla

STEPS = {
    "one cold request": [Sequence(0, 70, ((5, ()), (12, (3, 2)), (1, ())))],
    "kept context": [Sequence(130, 0, ((20, ()), (20, ())))],
    "kept, then more": [Sequence(100, 60, ((7, ()),))],
    "no context": [Sequence(0, 0, ((40, ()), (30, (4,)), (2, ())))],
    "empty item on a kept context": [Sequence(65, 0, (), again=True), Sequence(64, 0, ((3, ()),), again=True)],
    "tiny requests": [Sequence(0, 3, ((2, ()),)) for _ in range(12)],
    "nothing": [],
}


@pytest.mark.parametrize("name", STEPS)
def test_xla_equals_the_reference(name: str) -> None:
    made = case(STEPS[name], 256)
    expected, got = attended(Reference(), made), attended(Xla(), made)
    np.testing.assert_allclose(real(made, got[0]), real(made, expected[0]), atol=1e-5)
    np.testing.assert_allclose(real(made, got[1], True), real(made, expected[1], True), atol=1e-5)
    assert np.isfinite(np.asarray(got[0])).all()
    np.testing.assert_array_equal(got[2].k, expected[2].k)


@pytest.mark.parametrize("seed", range(6))
def test_xla_equals_the_reference_on_random_steps(seed: int) -> None:
    sequences = random_sequences(np.random.default_rng(seed), 5)
    made = case(sequences, 1024, entries=64, pages=80, seed=seed)
    expected, got = attended(Reference(), made), attended(Xla(), made)
    np.testing.assert_allclose(real(made, got[0]), real(made, expected[0]), atol=1e-5)
    np.testing.assert_allclose(real(made, got[1], True), real(made, expected[1], True), atol=1e-5)
