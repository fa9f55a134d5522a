"""Products of numbers in bf16 by NEON's bfmmla (`csrc/products/bf16_pairs.h`) equal those of float64, on a CPU that has
it or under qemu: a small C++ program (`bf16_driver.cc`) is compiled for it."""

import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from kernels.cpu.emulation import toolchain

pytestmark = pytest.mark.extended  # a compiler's seconds; CPUs without bfmmla have the products of test_line_ops.py
SIZES = [(1, 1, 1), (1, 3, 4), (3, 2, 7), (16, 6, 8), (17, 7, 96), (48, 24, 576), (33, 25, 1531), (20, 5, 2056)]


class Driver:
    def __init__(self, command: list[str]) -> None:
        self.command = command

    def run(self, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """[rows, tokens], of x [tokens, terms] and weights [rows, terms]."""
        sizes = np.array([x.shape[1], len(weights), len(x)], np.int64)
        arrays = (sizes, x.astype(np.float32), weights.astype(ml_dtypes.bfloat16))
        sent = b"".join(array.tobytes() for array in arrays)
        out = subprocess.run(self.command, input=sent, capture_output=True, check=True).stdout
        assert out[:16].rstrip(b"\0") == b"neon-bf16"
        return np.frombuffer(out[16:], np.float32).reshape(len(weights), len(x))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    program = tmp_path_factory.mktemp("driver") / "bf16_driver"
    tools = toolchain("aarch64", ("asimd", "bf16"))
    return Driver(tools.compile(Path(__file__).parent / "bf16_driver.cc", ("-march=armv8.2-a+bf16",), program))


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def drawn(tokens: int, rows: int, terms: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((tokens, terms)).astype(np.float32), rng.standard_normal((rows, terms))


@pytest.mark.parametrize(("tokens", "rows", "terms"), SIZES)
def test_sums_of_whole_numbers_are_exact(driver: Driver, tokens: int, rows: int, terms: int) -> None:
    """Sums of up to 2,056 products of 8 times 8 bits fit in float32's 24 where they are small."""
    rng = np.random.default_rng(2)
    x, weights = rng.integers(-90, 91, (tokens, terms)), rng.integers(-90, 91, (rows, terms))
    np.testing.assert_array_equal(driver.run(x, weights), weights @ x.T)


@pytest.mark.parametrize(("tokens", "rows", "terms"), SIZES)
def test_sums_are_those_of_numbers_rounded_to_bf16(driver: Driver, tokens: int, rows: int, terms: int) -> None:
    """To float32's rounding, however many terms are added; activations that were not rounded would be further off."""
    x, weights = drawn(tokens, rows, terms)
    results = driver.run(x, weights)
    near, wide = (rounded(weights) @ a.T for a in (rounded(x), x.astype(np.float64)))
    assert np.abs(results - near).max() <= 2e-6 * np.sqrt(terms) * np.abs(near).max()
    if terms > 8:
        assert np.abs(results - wide).max() > 1e-4 * np.abs(wide).max(), "the control: x itself, not rounded"


def test_activations_are_rounded_to_the_nearest_and_halves_to_even(driver: Driver) -> None:
    x = np.array([[1 + 2.0**-8], [1 + 3 * 2.0**-8], [1 + 2.0**-8 + 2.0**-20], [-1 - 2.0**-8]], np.float32)
    np.testing.assert_array_equal(driver.run(x, np.ones((1, 1)))[0], [1, 1 + 2.0**-6, 1 + 2.0**-7, -1])


def test_a_token_does_not_depend_on_others(driver: Driver) -> None:
    x, weights = drawn(40, 7, 100)
    together = driver.run(x, weights)
    for token in (0, 17, 39):
        np.testing.assert_array_equal(driver.run(x[token : token + 1], weights)[:, 0], together[:, token])


def test_a_number_that_is_not_finite_stays_with_its_token(driver: Driver) -> None:
    x, weights = drawn(5, 3, 20)
    x[1, 3], x[2, 19] = np.nan, np.inf
    results = driver.run(x, weights)
    assert np.isfinite(results[:, [0, 3, 4]]).all()
    assert not np.isfinite(results[:, 1:3]).any()
