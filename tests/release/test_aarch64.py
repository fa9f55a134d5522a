"""The kernels for ARM64, compiled here and run under emulation, give what the kernels of this machine give."""

import platform
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.steps import case
from attention.test_xla import STEPS
from kernels.cpu.comparison import TOKENS, attended
from kernels.cpu.test_line_ops import SMALL, WIDE, given, layers_of, run
from loading.gguf.files import model_metadata, stored, write_gguf
from onepass.kernels.cpu import build
from onepass.kernels.cpu.attention import CpuAttention
from onepass.kernels.cpu.instruction_sets import INSTRUCTION_SETS
from onepass.kernels.cpu.libraries import (
    ATTENTION,
    PRODUCTS_BF16,
    PRODUCTS_F32,
    PRODUCTS_GGUF_DOT,
    PRODUCTS_INT8_DOT_F32,
    PRODUCTS_INT8_F32,
    Library,
)
from onepass.kernels.cpu.line_ops import CpuLayerOps
from onepass.loading.gguf.file import GgufFile
from onepass.models.int8 import layers_in_int8
from release import wheels
from release.recorded_calls import FfiCall, read_results, recorded, write_calls

DRIVER = Path(__file__).parent / "ffi_driver.cc"
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
GLIBC = next((path for path in (Path("/usr/aarch64-linux-gnu"),) if (path / "lib" / "libc.so.6").exists()), None)
if platform.machine() == "aarch64":
    GLIBC = Path("/")
pytestmark = [
    wheels.needs_zig,
    pytest.mark.slow,
    pytest.mark.skipif(EMULATOR is None, reason="no qemu-aarch64 (Debian: qemu-user)"),
    pytest.mark.skipif(GLIBC is None, reason="no glibc for ARM64 (Debian: libc6-arm64-cross)"),
    pytest.mark.skipif(build.cpu_problem() is not None, reason=str(build.cpu_problem())),
]
SETS = {row.name: row for row in INSTRUCTION_SETS}
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2}


@pytest.fixture(scope="module")
def scripts() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(wheels.ROOT / "release"))
        import build_wheels
    return build_wheels


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("driver") / "ffi_driver"
    command = [str(wheels.ZIG), "c++", "-target", "aarch64-linux-gnu.2.28", "-std=c++20", "-O2", "-w"]
    subprocess.run([*command, "-isystem", build.ffi_headers(), str(DRIVER), "-o", str(output)], check=True)
    return output


def emulated(
    library: Library, calls: list[FfiCall], driver: Path, scripts: ModuleType, instruction_set: str = "neon"
) -> list[tuple[np.ndarray, ...]]:
    """The results of these calls by the library that a wheel would have."""
    folder = driver.parent / f"{library.file_stem}-{instruction_set}"
    if not folder.exists():
        scripts.compile_libraries([scripts.Task(library, SETS[instruction_set])], wheels.ZIG, folder)
    (path,) = folder.glob("*.so")
    (folder / "calls").write_bytes(write_calls(calls))
    command = [EMULATOR, "-cpu", "max", "-L", GLIBC, driver, path, folder / "calls", folder / "results"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return read_results(calls, (folder / "results").read_bytes())


def check_equal(calls: list[FfiCall], results: list[tuple[np.ndarray, ...]], dtype: str) -> None:
    """Of attention the real tokens alone: what padding gets depends on where XLA puts the result."""
    for call, arrays in zip(calls, results, strict=True):
        tokens = int(call.arguments[6]) if "_attend_" in call.target else None
        for wanted, got in zip(call.results, arrays, strict=True):
            wide = wanted[:tokens].astype(np.float32)
            error = np.abs(got[:tokens].astype(np.float32) - wide).max(initial=0)
            assert error <= TOLERANCE[dtype] * np.abs(wide).max(initial=0), call.target


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
def test_attention_of_arm64_equals_this_machines(
    dtype, driver: Path, scripts: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.load_cpu()
    with recorded(monkeypatch) as calls:
        for name in list(STEPS)[:3]:
            attended(CpuAttention(group=3), case(STEPS[name], TOKENS, dtype=dtype, group=3, head_dim=64))
    assert {call.target.split("_")[2] for call in calls} == {"attend", "write"}
    check_equal(calls, emulated(ATTENTION, calls, driver, scripts), jnp.dtype(dtype).name)


@pytest.mark.parametrize(
    ("library", "dtype", "instruction_set", "sizes"),
    [
        (PRODUCTS_F32, jnp.float32, "neon", SMALL),
        (PRODUCTS_BF16, jnp.bfloat16, "neon", SMALL),
        (PRODUCTS_BF16, jnp.bfloat16, "bf16", SMALL),
        (PRODUCTS_BF16, jnp.bfloat16, "bf16", WIDE),
        (PRODUCTS_INT8_F32, jnp.float32, "neon", WIDE),
    ],
    ids=["f32", "bf16", "bf16-bfmmla", "bf16-bfmmla-wide", "int8"],
)
def test_products_of_arm64_equal_this_machines(
    library: Library,
    dtype,
    instruction_set: str,
    sizes: tuple[int, int, int],
    driver: Path,
    scripts: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build.load_cpu("int8" if library is PRODUCTS_INT8_F32 else "")
    layers = layers_of(sizes, dtype, extras=True)
    layers = layers_in_int8(layers) if library is PRODUCTS_INT8_F32 else layers
    with recorded(monkeypatch) as calls:
        for tokens in (1, 37):
            run(CpuLayerOps(), layers, *given(sizes, tokens, dtype), jnp.int32(tokens))
    assert {call.target for call in calls} <= set(library.targets)
    assert len(calls) == 8
    check_equal(calls, emulated(library, calls, driver, scripts, instruction_set), jnp.dtype(dtype).name)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
def test_integer_products_by_smmla_equal_those_of_dot_products(
    dtype, driver: Path, scripts: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, and near this machine's, whose activations may be rounded otherwise."""
    build.load_cpu("int8_dot")
    layers = layers_in_int8(layers_of(WIDE, dtype, extras=True))
    with recorded(monkeypatch) as calls:
        for tokens in (1, 37):
            run(CpuLayerOps(integer_products=True), layers, *given(WIDE, tokens, dtype), jnp.int32(tokens))
    assert len(calls) == 8
    check_pairs(PRODUCTS_INT8_DOT_F32, calls, driver, scripts)


def test_products_of_gguf_blocks_by_smmla_equal_those_of_dot_products(
    driver: Path, scripts: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An odd number of rows, with scales of every 32 and 16 terms, with offsets, and of floats."""
    build.load_cpu("gguf_dot")
    rows, terms, tokens = 51, 512, 37
    x = np.random.default_rng(1).standard_normal((tokens, terms)).astype(np.float32)
    shapes = [jax.ShapeDtypeStruct((3, size, 16), jnp.float32) for size in (rows, terms)]
    with recorded(monkeypatch) as calls:
        for kind in ("Q8_0", "Q4_1", "Q6_K", "F16"):
            path = write_gguf(tmp_path / f"{kind}.gguf", model_metadata(), {"matrix": stored(kind, (rows, terms))})
            number, row_bytes = GgufFile.open(path).stored_as("matrix")
            blocks = GgufFile.open(path).read_stored("matrix").reshape(-1)
            places = np.arange(rows, dtype=np.uint32)[None] * (row_bytes // 2)
            weight = (blocks, places, np.full((1, rows), number, np.uint8), np.zeros(1, np.int32))
            given = (x, np.int32(tokens), *weight, np.zeros(0, np.float32), np.zeros((3, rows, 16), np.float32))
            jax.ffi.ffi_call("onepass_cpu_add_gguf_dot_f32", tuple(shapes))(*map(jnp.asarray, given))
    check_pairs(PRODUCTS_GGUF_DOT, calls, driver, scripts)


def check_pairs(library: Library, calls: list[FfiCall], driver: Path, scripts: ModuleType) -> None:
    dot, pairs = (emulated(library, calls, driver, scripts, name) for name in ("dotprod", "i8mm"))
    for call, wanted, got in zip(calls, dot, pairs, strict=True):
        for a, b in zip(wanted, got, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=call.target)
        for a, b in zip(call.results, got, strict=True):
            wide = a.astype(np.float32)
            assert np.abs(b.astype(np.float32) - wide).mean() <= 0.02 * np.abs(wide).mean(), call.target


def test_a_wrong_argument_is_noticed(driver: Path, scripts: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the comparison fails for another layer's weights."""
    build.load_cpu()
    layers, (x, attended_heads) = layers_of(SMALL, jnp.float32, extras=True), given(SMALL, 5, jnp.float32)
    with recorded(monkeypatch) as calls:
        run(CpuLayerOps(), layers, x, attended_heads, jnp.int32(5))
    changed = [
        FfiCall(call.target, (call.arguments[0] * 2, *call.arguments[1:]), call.results, call.attributes)
        for call in calls[1:2]
    ]
    with pytest.raises(AssertionError):
        check_equal(calls[1:2], emulated(PRODUCTS_F32, changed, driver, scripts), "float32")
