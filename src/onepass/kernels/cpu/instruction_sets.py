"""The instruction sets that wheels have libraries for, and which of them the CPU of this machine has.

A wheel holds every general library once per row of its machine; `prebuilt` picks the last row whose features the CPU
has. Libraries that are built on the user's machine are compiled for its CPU and need no row.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from onepass.kernels.cpu.libraries import (
    AMX,
    AMX_FEATURES,
    AMX_GGUF,
    AMX_INT8,
    AMX_INT8_DOT,
    HALF_ATTENTION,
    HALF_FEATURES,
    SHORT_ATTENTION,
    Library,
)


@dataclass(frozen=True)
class InstructionSet:
    """`features` are by Linux's names (/proc/cpuinfo), `cpu` is the compiler's -mcpu for a wheel's library.
    `only_for`: only products of these numbers, "int8" or "bf16", gain by it over the rows before, so that wheels have
    other libraries without it."""

    name: str
    machine: str
    cpu: str
    features: tuple[str, ...]
    only_for: str | None = None


AVX2 = ("avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
INSTRUCTION_SETS = (
    InstructionSet("avx2", "x86_64", "x86_64_v3", AVX2),
    InstructionSet("avxvnni", "x86_64", "x86_64_v3+avxvnni", (*AVX2, "avx_vnni"), only_for="int8"),
    InstructionSet("avx512", "x86_64", "x86_64_v4", AVX512),
    InstructionSet("avx512vnni", "x86_64", "x86_64_v4+avx512vnni", (*AVX512, "avx512_vnni"), only_for="int8"),
    InstructionSet("neon", "aarch64", "generic", ("asimd",)),
    InstructionSet("dotprod", "aarch64", "generic+dotprod", ("asimd", "asimddp"), only_for="int8"),
    InstructionSet("i8mm", "aarch64", "generic+dotprod+i8mm", ("asimd", "asimddp", "i8mm"), only_for="int8"),
    InstructionSet("bf16", "aarch64", "generic+bf16", ("asimd", "bf16"), only_for="bf16"),
)
AMX_EXTENSIONS = [
    name.replace("avx512_", "avx512") for name in AMX_FEATURES if name not in AVX512
]  # by the compiler's names
AMX_SET = InstructionSet("amx", "x86_64", "+".join(["x86_64_v4", *AMX_EXTENSIONS]), (*AVX512, *AMX_FEATURES))
HALF_SET = InstructionSet("fp16", "aarch64", "generic+fullfp16", HALF_FEATURES)
VNNI_SET = next(row for row in INSTRUCTION_SETS if row.name == "avx512vnni")
OWN_SETS = {
    **{library.file_stem: AMX_SET for library in (AMX, AMX_GGUF, AMX_INT8, AMX_INT8_DOT)},
    HALF_ATTENTION.file_stem: HALF_SET,
    SHORT_ATTENTION.file_stem: replace(VNNI_SET, only_for=None),
}  # of libraries that need more than every CPU has


def instruction_sets(library: Library, machine: str) -> tuple[InstructionSet, ...]:
    """Those that a wheel has a library for, from the one that every such CPU has to the one that the newest have."""
    rows = (OWN_SETS[library.file_stem],) if library.file_stem in OWN_SETS else INSTRUCTION_SETS
    return tuple(row for row in rows if row.machine == machine and row.only_for in (None, library.multiplies))


@cache
def cpu_features() -> frozenset[str]:
    """By Linux's names, of x86 and ARM; none where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    line = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(line.partition(":")[2].split())
