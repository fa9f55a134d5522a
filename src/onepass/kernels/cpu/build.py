"""The C++ of csrc/, built once for this machine: `load_cpu()` and `load_amx()` register it with XLA, `load_gguf()` does
not need XLA.

Built with the machine's own C++ compiler, in seconds, into the user's cache; a change of source, flags, compiler, CPU
or jaxlib builds anew. Where that cannot be, `cpu_problem()`, `amx_problem()` or `NotBuilt` says why, and the caller
takes XLA's own code. What the functions compute is in the files; who calls them is `attention`, `layer_ops` and
`dequantize`.
"""

import ctypes
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
COMMON_FLAGS = ("-std=c++20", "-O3", "-ffp-contract=fast", "-w", "-fPIC")
AMX_FEATURES = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "amx_tile", "amx_bf16")
# Sums of products are not fused where blocks are widened: scores must not depend on whether this could be built.
OWN_FLAGS = {"gguf_dequantize.cc": ("-ffp-contract=off",)}
MACHINES = {"x86_64": "-march=native", "aarch64": "-mcpu=native"}


class NotBuilt(Exception):
    """There is no native code on this machine; the message says why."""


@dataclass(frozen=True)
class Library:
    """A shared object: its sources, the FFI targets in it, and the flags that are its own."""

    name: str
    sources: tuple[str, ...]
    operations: tuple[str, ...]
    flags: tuple[str, ...]
    dtypes: tuple[str, ...] = ("bf16", "f32")  # of the network
    weights: str = ""  # what the targets' names say of weights that are not in the network's own numbers

    @property
    def targets(self) -> tuple[str, ...]:
        dtypes = [self.weights + dtype for dtype in self.dtypes]
        return tuple(f"onepass_{self.name}_{what}_{dtype}" for what in self.operations for dtype in dtypes)


AMX = Library(
    "amx",
    ("amx_attention.cc", "amx_products.cc", "amx_ready.cc"),
    ("attend", "qkv", "add", "add_tiled", "gate_up"),
    ("-mfma", *(f"-m{name.replace('amx_', 'amx-').replace('_', '')}" for name in AMX_FEATURES)),
)


def cpu_library() -> Library:
    """For the CPU that this is: the compiler asks it."""
    return Library(
        "cpu",
        ("cpu_attention.cc", "cpu_panels.cc", "cpu_pool.cc"),
        ("attend", "write", "zeros"),
        (MACHINES[platform.machine()],),
    )


def products_library(dtype: str) -> Library:
    """The products of one dtype, bf16 or f32, apart: each is a quarter of a minute of a compiler."""
    return Library(
        "cpu",
        (f"cpu_products_{dtype}.cc",),
        ("qkv", "add", "add_lines", "gate_up"),
        (MACHINES[platform.machine()],),
        dtypes=(dtype,),
    )


def int8_library() -> Library:
    """The products of 8-bit weights, apart: built where they are asked for."""
    return Library(
        "cpu",
        ("cpu_products_int8_bf16.cc", "cpu_products_int8_f32.cc"),
        ("qkv", "add", "add_lines", "gate_up"),
        (MACHINES[platform.machine()],),
        weights="int8_",
    )


def gguf_products_library() -> Library:
    """The products of weights in GGUF's blocks, apart: built where a quantised file is loaded."""
    return Library(
        "cpu",
        ("cpu_products_gguf.cc", "gguf_dequantize.cc"),
        ("qkv", "add", "add_lines", "gate_up", "rows", "logits"),
        (MACHINES[platform.machine()],),
        weights="gguf_",
        dtypes=("f32",),
    )


def gguf_library() -> Library:
    return Library("gguf", ("gguf_dequantize.cc",), (), (MACHINES[platform.machine()],))


def cpu_problem() -> str | None:
    """Why the general kernels cannot be built here, as far as that shows without building them; None where they can."""
    if platform.system() != "Linux" or platform.machine() not in MACHINES:
        return f"needs Linux on x86-64 or ARM64; this is {platform.system()} on {platform.machine()}"
    return None if find_compiler() else "needs a C++ compiler: none of $CXX, c++, g++ and clang++ was found"


def amx_problem() -> str | None:
    """The same of the AMX kernels."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return f"needs Linux on x86-64; this is {platform.system()} on {platform.machine()}"
    lacking = [name for name in AMX_FEATURES if name not in cpu_features()]
    return f"needs a CPU with {', '.join(lacking)}" if lacking else cpu_problem()


@cache
def load_cpu() -> None:
    """Builds what is not built yet. XLA's registry is the process's, so this is done once."""
    _load(cpu_library, products_bf16, products_f32)


@cache
def load_cpu_int8() -> None:
    _load(cpu_library, products_bf16, products_f32, int8_library)


@cache
def load_cpu_gguf() -> None:
    """Networks in float32 only."""
    _load(cpu_library, products_f32, gguf_products_library)


def products_bf16() -> Library:
    return products_library("bf16")


def products_f32() -> Library:
    return products_library("f32")


def _load(*libraries: Callable[[], Library]) -> None:
    """All of them, those that are not built yet side by side."""
    if (why := cpu_problem()) is not None:
        raise NotBuilt(why)
    import jax

    wanted, headers = [library() for library in libraries], jax.ffi.include_dir()
    with ThreadPoolExecutor(len(wanted), "onepass-build") as pool:
        list(pool.map(lambda library: build(library, headers), wanted))
    for library in wanted:
        register(library)


@cache
def load_amx() -> None:
    """The AMX kernels, and the general ones, which write pages for them."""
    if (why := amx_problem()) is not None:
        raise NotBuilt(why)
    load_cpu()
    if not register(AMX).onepass_amx_ready():
        raise NotBuilt("the kernel does not let this process use AMX")


@cache
def load_gguf() -> ctypes.CDLL:
    """What widens the blocks of GGUF files. Its source includes nothing of XLA's."""
    if (why := cpu_problem()) is not None:
        raise NotBuilt(why)
    return ctypes.CDLL(str(build(gguf_library(), str(SOURCES))))


@cache
def register(library: Library) -> ctypes.CDLL:
    import jax

    loaded = ctypes.CDLL(str(build(library, jax.ffi.include_dir())))
    for name in library.targets:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(loaded, name)), platform="cpu")
    return loaded


def build(library: Library, headers: str) -> Path:
    """The shared object, from the user's cache where it is there."""
    from platformdirs import user_cache_path

    compiler = find_compiler()
    assert compiler is not None
    target = user_cache_path("onepass") / "native" / f"{library.name}-{build_key(library, compiler)}.so"
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            output = Path(scratch, target.name)
            compile_library(library, compiler, headers, output)
            output.replace(target)  # at once: another process may be building the same
    except OSError as error:
        raise NotBuilt(f"it could not be written: {error}") from error
    return target


def compile_library(library: Library, compiler: str, headers: str, output: Path) -> None:
    """The sources in processes side by side, then linked."""
    objects = [output.with_name(f"{name}.o") for name in library.sources]
    flags = [*COMMON_FLAGS, *library.flags, "-isystem", headers]

    def run(*arguments: str | Path) -> subprocess.Popen[str]:
        command = [compiler, *flags, *map(str, arguments)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def finish(processes: list[subprocess.Popen[str]]) -> None:
        errors = [process.communicate()[1].strip() for process in processes]
        failed = [error for process, error in zip(processes, errors, strict=True) if process.returncode != 0]
        if failed:
            raise NotBuilt(f"{compiler} failed: {failed[0][-300:]}")

    finish(
        [
            run("-c", *OWN_FLAGS.get(name, ()), SOURCES / name, "-o", path)
            for name, path in zip(library.sources, objects, strict=True)
        ]
    )
    finish([run("-shared", *objects, "-o", output)])


def build_key(library: Library, compiler: str) -> str:
    """Changes with everything that the shared object depends on."""
    parts = [
        compiler_version(compiler),
        *COMMON_FLAGS,
        *library.flags,
        *library.targets,
        importlib.metadata.version("jaxlib"),
        cpu_kind(),
    ]
    paths = [*sorted(SOURCES.glob("*.h")), *(SOURCES / name for name in library.sources)]
    parts += [path.read_text(encoding="utf-8") for path in paths]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@cache
def compiler_version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout


def find_compiler() -> str | None:
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def cpu_kind() -> str:
    """What -march=native depends on: the machine, and the CPU's features by Linux's names."""
    return " ".join((platform.machine(), *sorted(cpu_features())))


@cache
def cpu_features() -> frozenset[str]:
    """By Linux's names, of x86 and ARM; none where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    line = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(line.partition(":")[2].split())
