"""Powers of two and roundings against numpy and against JAX's own."""

import jax.numpy as jnp
import numpy as np

from onepass.attention.fast_math import power_of_two, rounded


def test_powers_of_two_are_right_to_float32() -> None:
    x = np.concatenate([np.linspace(-126, 126, 100_001), np.random.default_rng(0).uniform(-2, 2, 10_000)])
    x = x.astype(np.float32)
    np.testing.assert_allclose(
        np.asarray(power_of_two(jnp.asarray(x)), np.float64), np.exp2(x.astype(np.float64)), 3e-7
    )


def test_a_masked_score_has_no_weight_at_all() -> None:
    assert np.asarray(power_of_two(jnp.asarray([-127.0, -1000.0, -1e30, -np.inf], jnp.float32))).tolist() == [0.0] * 4
    assert power_of_two(jnp.float32(0.0)) == 1.0


def test_rounding_to_16_bits_is_to_the_nearest() -> None:
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.standard_normal(50_000) * 10.0 ** rng.integers(-20, 20, 50_000), jnp.float32)
    wanted, got = x.astype(jnp.bfloat16), rounded(x, jnp.bfloat16)
    bits = np.asarray(x).view(np.uint32)
    halves = (bits & 0xFFFF) == 0x8000
    assert (np.asarray(wanted == got) | halves).all()
    assert not halves.all()
    assert rounded(jnp.float32(1 + 2**-8), jnp.bfloat16) == 1 + 2**-7  # a half, away from 0


def test_rounding_keeps_what_is_not_a_number() -> None:
    got = np.asarray(rounded(jnp.asarray([np.inf, -np.inf, np.nan, 0.0], jnp.float32), jnp.bfloat16), np.float32)
    np.testing.assert_array_equal(got, [np.inf, -np.inf, np.nan, 0.0])


def test_float32_is_not_rounded() -> None:
    assert rounded(jnp.float32(1 + 2**-20), jnp.float32) == np.float32(1 + 2**-20)
