"""The C++ beside this file, built once for this machine and made known to XLA: `load()`.

Built with the machine's own C++ compiler, in seconds, into the user's cache; a change of source, compiler or jaxlib
builds anew. Where that cannot be, `problem()` or `load()` says why, and XLA's own code is used. What the functions
compute is said in the files; who calls them is `attention.amx` and `models.amx_products`.
"""

import ctypes
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
FUNCTIONS = tuple(
    f"onepass_{what}_{numbers}"
    for what in ("attend", "plain", "added", "added_tiled", "gated")
    for numbers in ("bf16", "f32")
)
INSTRUCTIONS = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "amx_tile", "amx_bf16")
FLAGS = ("-std=c++20", "-O3", "-w", "-fPIC", "-shared", "-mfma",
         *(f"-m{name.replace('amx_', 'amx-').replace('_', '')}" for name in INSTRUCTIONS))  # fmt: skip


class NotBuilt(Exception):
    """There is no native code on this machine; the message says why."""


def problem() -> str | None:
    """Why there cannot be native code here, as far as can be told without building it; None where there can."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return f"needs Linux on x86-64; this is {platform.system()} on {platform.machine()}"
    lacking = [name for name in INSTRUCTIONS if name not in cpu_flags()]
    if lacking:
        return f"needs a CPU with {', '.join(lacking)}"
    return None if _compiler() else "needs a C++ compiler: none of $CXX, c++, g++ and clang++ was found"


@cache
def load() -> None:
    """Builds what is not built yet. XLA's registry is the process's, so this is done once."""
    import jax

    if (why := problem()) is not None:
        raise NotBuilt(why)
    library = ctypes.CDLL(str(_built(jax.ffi.include_dir())))
    if not library.onepass_ready():
        raise NotBuilt("the kernel does not let this process use AMX")
    for name in FUNCTIONS:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")


def _built(headers: str) -> Path:
    from platformdirs import user_cache_path

    sources = sorted(FOLDER.glob("*.cc"))
    compiler = _compiler()
    assert compiler is not None
    target = user_cache_path("onepass") / "native" / f"onepass-{_key(compiler)}.so"
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch, target.name)
            command = [compiler, *FLAGS, "-isystem", headers, *map(str, sources), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise NotBuilt(f"{compiler} failed: {done.stderr.strip()[-300:]}")
            made.replace(target)  # at once: another process may be building the same
    except OSError as error:
        raise NotBuilt(f"it could not be written: {error}") from error
    return target


def _key(compiler: str) -> str:
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    parts = [said, *FLAGS, importlib.metadata.version("jaxlib")]
    parts += [path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.[ch]*"))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compiler() -> str | None:
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


@cache
def cpu_flags() -> frozenset[str]:
    """The CPU's features by Linux's names; none where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())
