"""The pieces of a layer against formulas written out in numpy."""

import jax.numpy as jnp
import numpy as np
import pytest

from onepass.models.layers import gated, rms_norm, rotate
from onepass.models.rope import Rope, inverse_frequencies

HEAD_DIM = 8


def angles(positions: list[int], rope: Rope) -> tuple[jnp.ndarray, jnp.ndarray]:
    turned = np.array(positions)[:, None] * inverse_frequencies(rope, HEAD_DIM)
    return jnp.asarray(np.cos(turned), jnp.float32), jnp.asarray(np.sin(turned), jnp.float32)


def test_the_norm_divides_by_the_root_mean_square() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
    weight = np.arange(1, 9, dtype=np.float32)
    wanted = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(rms_norm(jnp.asarray(x), jnp.asarray(weight), 1e-5), wanted, rtol=1e-5)


def test_frequencies_fall_from_one_by_the_base() -> None:
    np.testing.assert_allclose(inverse_frequencies(Rope(10000.0), 8), [1, 0.1, 0.01, 0.001], rtol=1e-6)


def test_linear_scaling_slows_every_frequency() -> None:
    plain = inverse_frequencies(Rope(10000.0), 8)
    np.testing.assert_allclose(inverse_frequencies(Rope(10000.0, "linear", 4.0), 8), plain / 4, rtol=1e-6)


def test_llama3_scaling_keeps_short_waves_and_slows_long_ones() -> None:
    plain = inverse_frequencies(Rope(500000.0), 64)
    scaled = inverse_frequencies(Rope(500000.0, "llama3", 8.0, 1.0, 4.0, 8192), 64)
    wavelength = 2 * np.pi / plain
    np.testing.assert_allclose(scaled[wavelength < 8192 / 4], plain[wavelength < 8192 / 4], rtol=1e-6)
    np.testing.assert_allclose(scaled[wavelength > 8192], plain[wavelength > 8192] / 8, rtol=1e-6)
    between = (wavelength > 8192 / 4) & (wavelength < 8192)
    assert between.any()
    assert (scaled[between] < plain[between]).all()
    assert (scaled[between] > plain[between] / 8).all()


def test_rotation_turns_pairs_of_halves() -> None:
    x = np.random.default_rng(1).standard_normal((3, 2, HEAD_DIM)).astype(np.float32)
    rope = Rope(10000.0)
    got = np.asarray(rotate(jnp.asarray(x), angles([0, 1, 7], rope)))
    frequency = inverse_frequencies(rope, HEAD_DIM)
    for token, position in enumerate([0, 1, 7]):
        pairs = x[token, :, :4] + 1j * x[token, :, 4:]
        turned = pairs * np.exp(1j * position * frequency)
        np.testing.assert_allclose(got[token, :, :4], turned.real, atol=1e-5)
        np.testing.assert_allclose(got[token, :, 4:], turned.imag, atol=1e-5)


@pytest.mark.parametrize("shift", [1, 100])
def test_only_the_distance_of_two_positions_counts(shift: int) -> None:
    q, k = np.random.default_rng(2).standard_normal((2, 2, 1, HEAD_DIM)).astype(np.float32)

    def product(first: int, second: int) -> float:
        turned_q = rotate(jnp.asarray(q), angles([first, 0], Rope(10000.0)))[0]
        turned_k = rotate(jnp.asarray(k), angles([second, 0], Rope(10000.0)))[0]
        return float((turned_q * turned_k).sum())

    assert product(5 + shift, 2 + shift) == pytest.approx(product(5, 2), abs=1e-4)
    assert product(5, 3) != pytest.approx(product(5, 2), abs=1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 5e-6), ("bfloat16", 2**-8)])
def test_the_gate_is_silu(dtype: str, tolerance: float) -> None:
    gate, up = jnp.asarray(np.random.default_rng(3).standard_normal((2, 500)) * 20, dtype)
    gate = gate.at[0].set(-200.0).at[1].set(200.0)
    wide = np.asarray(gate, np.float64)
    wanted = wide / (1 + np.exp(-wide)) * np.asarray(up, np.float64)
    np.testing.assert_allclose(np.asarray(gated(gate, up), np.float64), wanted, rtol=tolerance, atol=1e-30)
