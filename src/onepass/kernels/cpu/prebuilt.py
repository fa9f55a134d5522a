"""The shared objects that a wheel brings: `find` returns the one for a library and a CPU.

A file's name ends in a digest of everything that the code depends on: sources, flags, FFI targets, instruction set and
the version of XLA's FFI. A library that was built from something else has another name and is never loaded; a checkout
has none. `release/build_wheels.py` writes them; `build` compiles what is not found here.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from onepass.kernels.cpu import libraries
from onepass.kernels.cpu.instruction_sets import InstructionSet, instruction_sets
from onepass.kernels.cpu.libraries import Library

FOLDER = Path(__file__).parent / "prebuilt"


@dataclass(frozen=True)
class CpuTarget:
    """What a prebuilt library has to fit: the machine, the CPU's features, and the FFI of the installed jaxlib."""

    machine: str
    features: frozenset[str]
    ffi: str


@dataclass(frozen=True)
class Prebuilt:
    path: Path
    instruction_set: str


def find(library: Library, folder: Path, target: CpuTarget) -> Prebuilt | None:
    """For the newest instruction set that the CPU has and the package has a library for."""
    if not folder.is_dir():
        return None
    rows = [row for row in instruction_sets(library, target.machine) if target.features.issuperset(row.features)]
    paths = [(row.name, folder / file_name(library, row, target.ffi)) for row in reversed(rows)]
    return next((Prebuilt(path, name) for name, path in paths if path.is_file()), None)


def file_name(library: Library, instruction_set: InstructionSet, ffi: str) -> str:
    """`ffi` does not count for a library without FFI targets."""
    parts = [
        *libraries.COMMON_FLAGS,
        *(flag for name in library.sources for flag in libraries.OWN_FLAGS.get(name, ())),
        *library.flags,
        *library.targets,
        instruction_set.machine,
        instruction_set.cpu,
        ffi if library.targets else "",
        *library.texts(libraries.SOURCES),
    ]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return f"{library.file_stem}-{instruction_set.name}-{digest}.so"


def problem(folder: Path, target: CpuTarget) -> str:
    """Why the package has no library that fits, where none was found."""
    if not folder.is_dir():
        return "this installation has no prebuilt libraries"
    return f"its prebuilt libraries are for other CPUs, other sources or another FFI than jaxlib's {target.ffi}"


def ffi_version(headers: str) -> str:
    """The ABI of XLA's foreign functions by the headers of the installed jaxlib: "0.4"; where they name no version, a
    digest of the one that defines the ABI."""
    text = Path(headers, "xla", "ffi", "api", "c_api.h").read_text(encoding="utf-8")
    numbers = [re.search(rf"#define XLA_FFI_API_{part} (\d+)", text) for part in ("MAJOR", "MINOR")]
    version = ".".join(number[1] for number in numbers if number)
    return version if all(numbers) else hashlib.sha256(text.encode()).hexdigest()
