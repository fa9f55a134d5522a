"""The C++ of csrc/: `load()` registers it with XLA, `load_gguf()` does not need XLA.

A wheel brings it prebuilt. Otherwise the machine's own C++ compiler builds it once, into the user's cache; a
change of source, flags, compiler, CPU or jaxlib builds anew. Where neither can be, `cpu_problem()`, `amx_problem()` or
`NotBuilt` says why, and the caller takes XLA's own code. Which libraries there are is `libraries`; running the compiler
is `compiler`; who calls them is `attention`, `layer_ops` and `dequantize`.
"""

import ctypes
import hashlib
import importlib.metadata
import logging
import platform
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from onepass.kernels.cpu import libraries, prebuilt
from onepass.kernels.cpu.build_lock import locked
from onepass.kernels.cpu.compiler import NotBuilt, compile_library, compiler_version, find_compiler
from onepass.kernels.cpu.instruction_sets import cpu_features
from onepass.kernels.cpu.libraries import AMX, AMX_FEATURES, GENERAL, GGUF, Library, Weights
from onepass.kernels.cpu.prebuilt import CpuTarget, Prebuilt, ffi_version

MACHINES = {"x86_64": "-march=native", "aarch64": "-mcpu=native"}
MAX_WAIT_SECONDS = 120.0  # for another process that builds the same; a build takes seconds, many side by side a minute

log = logging.getLogger("onepass")


def cpu_problem() -> str | None:
    """Why the general kernels can be neither loaded nor built here, as far as that shows without building them; None
    where they can."""
    if platform.system() != "Linux" or platform.machine() not in MACHINES:
        return f"needs Linux on x86-64 or ARM64; this is {platform.system()} on {platform.machine()}"
    return _code_problem(GENERAL)


def amx_problem() -> str | None:
    """The same of the AMX kernels."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return f"needs Linux on x86-64; this is {platform.system()} on {platform.machine()}"
    lacking = [name for name in AMX_FEATURES if name not in cpu_features()]
    return f"needs a CPU with {', '.join(lacking)}" if lacking else _code_problem((*GENERAL, AMX))


def _code_problem(wanted: Sequence[Library]) -> str | None:
    if find_compiler() is not None:
        return None
    if all(find_prebuilt(library) for library in wanted):
        return None
    why = prebuilt.problem(prebuilt.FOLDER, cpu_target())
    return f"needs a C++ compiler: none of $CXX, c++, g++ and clang++ was found, and {why}"


@cache
def load(*wanted: Library) -> None:
    """All of them, those that are neither prebuilt nor built yet side by side. XLA's registry is the process's, so this
    is done once."""
    if not wanted:
        return
    if (why := amx_problem() if AMX in wanted else cpu_problem()) is not None:
        raise NotBuilt(why)
    _announce(wanted)
    with ThreadPoolExecutor(len(wanted), "onepass-build") as pool:
        list(pool.map(shared_object, wanted))
    for library in wanted:
        register(library)
    if AMX in wanted and not register(AMX).onepass_amx_ready():
        raise NotBuilt("the kernel does not let this process use AMX")


def load_cpu(weights: Weights = "") -> None:
    """What any model with such weights needs on any CPU."""
    load(*libraries.general_code(weights))


def load_amx(weights: Weights = "") -> None:
    """The same in AMX's tiles."""
    load(*libraries.amx_code(weights))


def _announce(wanted: Sequence[Library]) -> None:
    """A warning where something is to be built: a first start may take minutes on a small machine."""
    compiler = find_compiler()
    if compiler is None:
        return
    if any(find_prebuilt(library) is None and not cached_path(library, compiler).exists() for library in wanted):
        log.warning("building onepass's CPU kernels with %s: once, for a minute or two", compiler)


@cache
def load_gguf() -> ctypes.CDLL:
    """What widens the blocks of GGUF files."""
    if (why := cpu_problem()) is not None:
        raise NotBuilt(why)
    return ctypes.CDLL(str(shared_object(GGUF)))


@cache
def register(library: Library) -> ctypes.CDLL:
    import jax

    loaded = ctypes.CDLL(str(shared_object(library)))
    for name in library.targets:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(loaded, name)), platform="cpu")
    return loaded


def int8_dot_name(library: Library) -> str:
    """By which instructions one of the libraries for quantised activations multiplies: a row of `int8_dot`."""
    name = register(library).onepass_int8_dot_name
    name.restype = ctypes.c_char_p
    return str(name().decode())


def shared_object(library: Library) -> Path:
    """Prebuilt where the package has it, else from the user's cache, else built."""
    found = find_prebuilt(library)
    return found.path if found is not None else build(library, ffi_headers())


def find_prebuilt(library: Library) -> Prebuilt | None:
    return prebuilt.find(library, prebuilt.FOLDER, cpu_target())


def describe_code(wanted: Sequence[Library]) -> str:
    """Where the code of these libraries is from, without building any."""
    rows = {library: find_prebuilt(library) for library in wanted}
    to_build = [library for library, row in rows.items() if row is None]
    if not to_build:
        return f"prebuilt for {' and '.join(dict.fromkeys(row.instruction_set for row in rows.values() if row))}"
    if (compiler := find_compiler()) is None:
        return "neither prebuilt nor built: there is no C++ compiler"
    if all(cached_path(library, compiler).exists() for library in to_build):
        return f"built here by {compiler}"
    return f"built at first use by {compiler}"


def cpu_target() -> CpuTarget:
    return CpuTarget(platform.machine(), cpu_features(), ffi_version(ffi_headers()))


@cache
def ffi_headers() -> str:
    import jax

    return jax.ffi.include_dir()


def build(library: Library, headers: str) -> Path:
    """The shared object, from the user's cache where it is there."""
    compiler = find_compiler()
    if compiler is None:
        raise NotBuilt(f"needs a C++ compiler: {library.file_stem} is not prebuilt")
    target = cached_path(library, compiler)
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.with_suffix(".lock"), MAX_WAIT_SECONDS):
            if not target.exists():
                _build_at(target, library, compiler, headers)
    except OSError as error:
        raise NotBuilt(f"it could not be written: {error}") from error
    return target


def _build_at(target: Path, library: Library, compiler: str, headers: str) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        output = Path(scratch, target.name)
        compile_library(library, [compiler], native_flags(library), headers, output)
        output.replace(target)  # at once: a process that did not get the lock may be building the same


def cached_path(library: Library, compiler: str) -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("onepass") / "native" / f"{library.name}-{build_key(library, compiler)}.so"


def native_flags(library: Library) -> tuple[str, ...]:
    """The library's own, or those for the CPU that this is: the compiler asks it."""
    return library.flags or (MACHINES[platform.machine()],)


def build_key(library: Library, compiler: str) -> str:
    """Changes with everything that the shared object depends on."""
    parts = [
        compiler_version(compiler),
        *libraries.COMMON_FLAGS,
        *native_flags(library),
        *library.targets,
        importlib.metadata.version("jaxlib"),
        cpu_kind(),
        *library.texts(libraries.SOURCES),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def cpu_kind() -> str:
    """What -march=native depends on: the machine, and the CPU's features by Linux's names."""
    return " ".join((platform.machine(), *sorted(cpu_features())))
