"""The AMX kernels for tests: the real ones where the CPU has AMX, else the same sources over `amx_shim.h`."""

import hashlib
from functools import cache
from pathlib import Path

from onepass.kernels.cpu import build
from onepass.kernels.cpu.libraries import AMX, Library

SHIM = Path(__file__).parent / "amx_shim.h"
SHIM_FEATURES = ("avx512f", "avx512bw", "avx512vl", "avx512dq")


def problem() -> str | None:
    """Why neither can run here."""
    lacking = [name for name in SHIM_FEATURES if name not in build.cpu_features()]
    return f"needs a CPU with {', '.join(lacking)}" if lacking else build.cpu_problem()


@cache
def load() -> None:
    if build.amx_problem() is None:
        return build.load_amx()
    build.load_cpu()
    digest = hashlib.sha256(SHIM.read_bytes()).hexdigest()[:16]  # in the flags, and so in the key
    flags = ("-include", str(SHIM), f"-DAMX_SHIM=0x{digest}", "-mfma", *(f"-m{name}" for name in SHIM_FEATURES))
    build.register(Library("amx", AMX.sources, AMX.operations, flags))
    return None
