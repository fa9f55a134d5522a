"""Products of 8-bit integers (`csrc/products/int8_products.h`) equal NumPy's, bit for bit, with every instruction set
that this machine can run or emulate: a small C++ program (`int8_driver.cc`) is compiled for each."""

import functools
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from kernels.cpu.emulation import toolchain

pytestmark = pytest.mark.extended  # a compiler's 10 s for each instruction set; test_line_ops.py covers this CPU's
FOLDER = Path(__file__).parent
SHIM = ("-include", str(FOLDER / "vnni_shim.h"))
AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
AVX2 = ("avx2", "fma")


@dataclass(frozen=True)
class Variant:
    """`name` is kDotName of int8_dot.h; `needs` are features of the CPU, which qemu emulates where it can."""

    name: str
    levels: int
    flags: tuple[str, ...]
    needs: tuple[str, ...] = ()
    machine: str = "x86_64"
    label: str = ""
    planes: int = 1  # the most that activations may have, of 8 bits each


VARIANTS = (
    Variant("plain", 127, (), label="plain"),
    Variant("avx2", 63, ("-mavx2", "-mfma"), AVX2),
    Variant("avx512bw", 63, tuple(f"-m{name}" for name in AVX512), AVX512),
    Variant("avx-vnni", 127, ("-mavx2", "-mfma", "-mavxvnni"), (*AVX2, "avx_vnni"), planes=2),
    Variant("avx-vnni", 127, ("-mavx2", "-mfma", *SHIM), AVX2, label="avx-vnni in software", planes=2),
    Variant(
        "avx512-vnni", 127, (*(f"-m{name}" for name in AVX512), "-mavx512vnni"), (*AVX512, "avx512_vnni"),
        planes=2,
    ),
    Variant(
        "avx512-vnni", 127, (*(f"-m{name}" for name in AVX512), *SHIM), AVX512,
        label="avx512-vnni in software", planes=2,
    ),
    Variant("neon-dotprod", 127, ("-march=armv8.2-a+dotprod",), ("asimddp",), "aarch64", planes=2),
    Variant("neon-i8mm", 127, ("-march=armv8.2-a+dotprod+i8mm",), ("asimddp", "i8mm"), "aarch64", planes=2),
    Variant("plain", 127, ("-march=armv8-a",), ("asimd",), "aarch64", "plain on aarch64"),
)  # fmt: skip


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Variant], "Driver"]:
    """Compiles the driver for a variant, once."""

    @functools.cache
    def compile_driver(variant: Variant) -> Driver:
        tools, program = toolchain(variant.machine, variant.needs), tmp_path_factory.mktemp("driver") / "int8_driver"
        return Driver(variant, tools.compile(FOLDER / "int8_driver.cc", variant.flags, program))

    return compile_driver


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: (variant.label or variant.name).replace(" ", "-"))
def driver(request: pytest.FixtureRequest, compiled: Callable[[Variant], "Driver"]) -> "Driver":
    return compiled(request.param)


@dataclass(frozen=True)
class Products:
    name: str
    quantized: np.ndarray  # [tokens, terms], int32
    scale: np.ndarray  # [tokens, terms / 32]
    results: np.ndarray  # [rows, tokens]


@dataclass(frozen=True)
class Driver:
    variant: Variant
    command: list[str]

    def run(
        self,
        x: np.ndarray,
        weights: np.ndarray,
        scale: np.ndarray,
        offset: np.ndarray | None = None,
        planes: int = 1,
    ) -> Products:
        (tokens, terms), rows = x.shape, len(weights)
        sizes = np.array([terms, rows, tokens, terms // scale.shape[1], offset is not None, planes], np.int64)
        arrays = (sizes, x.astype(np.float32), weights.astype(np.int8), scale.astype(np.float32))
        sent = b"".join(a.tobytes() for a in arrays) + (b"" if offset is None else offset.astype(np.float32).tobytes())
        out = subprocess.run(self.command, input=sent, capture_output=True, check=True).stdout
        name, rest = out[:16].rstrip(b"\0").decode(), np.frombuffer(out[16:], np.int32)
        quantized, scales, results = np.split(rest, np.cumsum([tokens * terms, tokens * terms // 32]))
        shapes = ((tokens, terms // 32), (rows, tokens))
        floats = [part.view(np.float32).reshape(shape) for part, shape in zip((scales, results), shapes, strict=True)]
        return Products(name, quantized.reshape(tokens, terms), *floats)


def whole_numbers(levels: int, *shape: int) -> np.ndarray:
    """Activations that are their own quantised numbers: the largest of every block is `levels`."""
    rng = np.random.default_rng(1)
    x = rng.integers(-levels, levels + 1, shape)
    x[:, ::32] = levels * rng.choice([-1, 1], x[:, ::32].shape)
    return x.astype(np.int32)


@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize(("tokens", "rows", "terms"), [(1, 1, 32), (17, 7, 96), (48, 24, 576), (70, 25, 640)])
def test_sums_equal_those_of_32_bit_integers(driver: Driver, tokens: int, rows: int, terms: int, block: int) -> None:
    """Scales of 1 leave the integers' sums as they are: those of up to 640 terms are exact in float32."""
    x = whole_numbers(driver.variant.levels, tokens, terms)
    weights = np.random.default_rng(2).integers(-128, 128, (rows, terms)).astype(np.int32)
    products = driver.run(x, weights, np.ones((rows, terms // block)))
    assert products.name == driver.variant.name
    np.testing.assert_array_equal(products.quantized, x)
    np.testing.assert_array_equal(products.results, weights @ x.T)


@pytest.mark.parametrize("weight", [-128, 127])
def test_extreme_numbers_do_not_saturate(driver: Driver, weight: int) -> None:
    levels = driver.variant.levels
    x = np.repeat(np.array([[levels], [-levels]], np.int32), 64, axis=1)
    products = driver.run(x, np.full((3, 64), weight), np.ones((3, 2)))
    np.testing.assert_array_equal(products.results, np.full((3, 2), 64 * weight * levels) * [1, -1])


def test_activations_are_quantised_in_blocks_of_32(driver: Driver) -> None:
    """To the nearest of the levels of their own block, whatever the other blocks and tokens hold."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((20, 96)).astype(np.float32) * np.float32(10.0) ** rng.integers(-3, 4, (20, 1))
    x[5, 40], x[6, :32], x[7, 32:64] = 1e4, 0, 1e-35
    products = driver.run(x, np.ones((1, 96)), np.ones((1, 3)))
    blocks = np.abs(x.reshape(20, 3, 32)).max(axis=-1)
    wanted = np.where(blocks > 1e-30, blocks / np.float32(driver.variant.levels), 0)
    np.testing.assert_allclose(products.scale, wanted, rtol=1e-6)
    rebuilt = products.quantized * np.repeat(products.scale, 32, axis=1)
    assert (np.abs(rebuilt - x) <= 0.501 * np.repeat(wanted, 32, axis=1) + 1e-30).all()
    assert np.abs(products.quantized).max() == driver.variant.levels


@pytest.mark.parametrize("block", [16, 32])
def test_scales_and_offsets_equal_the_definition(driver: Driver, block: int) -> None:
    """Offsets multiply activations as they were before they were quantised."""
    rng = np.random.default_rng(4)
    tokens, rows, terms = 83, 13, 1536
    x = rng.standard_normal((tokens, terms)).astype(np.float32)
    weights = rng.integers(-127, 128, (rows, terms))
    scale, offset = rng.random((2, rows, terms // block))
    products = driver.run(x, weights, scale, offset)
    narrow = products.quantized * np.repeat(products.scale.astype(np.float64), 32, axis=1)
    wide = np.repeat(scale.astype(np.float32).astype(np.float64), block, axis=1)
    wanted = (weights * wide) @ narrow.T
    wanted += np.repeat(offset.astype(np.float32).astype(np.float64), block, axis=1) @ x.T.astype(np.float64)
    assert np.abs(products.results - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_a_number_that_is_not_finite_stays_visible(driver: Driver) -> None:
    x = np.ones((3, 64), np.float32)
    x[1, 3], x[2, 40] = np.nan, np.inf
    results = driver.run(x, np.ones((2, 64)), np.ones((2, 2))).results
    assert np.isfinite(results[:, 0]).all()
    assert not np.isfinite(results[:, 1:]).any()


@pytest.mark.parametrize("with_offset", [False, True])
@pytest.mark.parametrize("block", [16, 32])
def test_activations_of_11_bits(driver: Driver, block: int, with_offset: bool) -> None:
    """Each is within half a level of its own, and products are those of the levels: to 2e-3 those of float32."""
    if driver.variant.planes < 2:
        pytest.skip("activations have 11 bits only with VNNI and NEON's dot products")
    rng = np.random.default_rng(5)
    tokens, rows, terms = 83, 13, 1536
    x = (rng.standard_normal((tokens, terms)) * 10.0 ** rng.integers(-3, 4, (tokens, 1))).astype(np.float32)
    x[5, 40], x[6, :32] = 1e4, 0
    weights = rng.integers(-128, 128, (rows, terms))
    scale, offset = rng.random((2, rows, terms // block)).astype(np.float32)
    products = driver.run(x, weights, scale, offset if with_offset else None, planes=2)
    levels = np.repeat(products.scale.astype(np.float64), 32, axis=1)
    assert (np.abs(products.quantized * levels - x) <= 0.51 * levels + 1e-30).all()
    assert np.abs(products.quantized).max() == 8 * 127 + 3
    wide = weights * np.repeat(scale.astype(np.float64), block, axis=1)
    plus = np.repeat(offset.astype(np.float64), block, axis=1) @ x.T.astype(np.float64) * with_offset
    for narrow, allowed in ((products.quantized * levels, 2e-6), (x.astype(np.float64), 2e-3)):
        wanted = wide @ narrow.T + plus
        assert (np.abs(products.results - wanted).max(axis=0) <= allowed * np.abs(wanted).max(axis=0)).all()


@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("with_offset", [False, True])
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("names", [("neon-dotprod", "neon-i8mm"), ("avx512-vnni", "avx512-vnni")], ids=["neon", "vnni"])
def test_kernels_of_their_own_give_the_bits_of_the_others(
    names: tuple[str, str], block: int, with_offset: bool, planes: int, compiled: Callable[[Variant], Driver]
) -> None:
    """smmla's results are sdot's, and those of AVX-512's assembly are the compiler's, scales and offsets included; a
    changed weight is noticed."""
    drivers = [compiled(variant) for variant in VARIANTS if variant.name in names]
    rng = np.random.default_rng(6)
    x = rng.standard_normal((85, 4160)).astype(np.float32)  # more terms than are added up at once
    weights = rng.integers(-128, 128, (11, 4160))
    scale, offset = rng.random((2, 11, 4160 // block)).astype(np.float32)
    one, other = (one.run(x, weights, scale, offset if with_offset else None, planes).results for one in drivers)
    np.testing.assert_array_equal(other, one)
    weights[3, 70] ^= 1
    changed = drivers[1].run(x, weights, scale, offset if with_offset else None, planes).results
    np.testing.assert_array_equal((changed != one).any(axis=1), np.arange(11) == 3)
