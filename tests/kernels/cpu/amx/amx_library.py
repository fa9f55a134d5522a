"""The AMX kernels for tests: the real ones where the CPU has AMX, else the same sources over `amx_shim.h`; where it has
no AVX-512 either, over `portable/immintrin.h`, too."""

import hashlib
from dataclasses import replace
from functools import cache
from pathlib import Path

from onepass.kernels.cpu import build
from onepass.kernels.cpu.libraries import AMX, AMX_GGUF, AMX_INT8, AMX_INT8_DOT, Library

HERE = Path(__file__).parent
SHIM, PORTABLE = HERE / "amx_shim.h", HERE / "portable" / "immintrin.h"
SHIM_FEATURES = ("avx512f", "avx512bw", "avx512vl", "avx512dq")


def problem() -> str | None:
    """Why none can run here."""
    return build.cpu_problem()


@cache
def load() -> None:
    if build.amx_problem() is None:
        return build.load_amx()
    build.load_cpu()
    return _register_shim(AMX)


@cache
def load_gguf() -> None:
    load()
    if build.amx_problem() is None:
        return build.load_amx("gguf")
    build.load_cpu("gguf")
    return _register_shim(AMX_GGUF)


@cache
def load_int8() -> None:
    load()
    if build.amx_problem() is None:
        return build.load_amx("int8")
    return _register_shim(AMX_INT8, AMX_INT8_DOT)


def _register_shim(*libraries: Library) -> None:
    digest = hashlib.sha256(SHIM.read_bytes() + PORTABLE.read_bytes()).hexdigest()[:16]  # in the flags, so in the key
    flags = ["-include", str(SHIM), f"-DAMX_SHIM=0x{digest}"]
    if build.cpu_features() >= set(SHIM_FEATURES):
        flags += ["-mfma", *(f"-m{name}" for name in SHIM_FEATURES)]
    else:
        flags += ["-I", str(PORTABLE.parent)]
    for library in libraries:
        sources = tuple(name for name in library.sources if name != "amx/amx_ready.cc")  # which asks Linux for tiles
        build.register(replace(library, sources=sources, flags=tuple(flags)))
