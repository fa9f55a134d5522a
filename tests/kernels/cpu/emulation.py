"""A compiler for an instruction set, and what runs its programs: this CPU, or qemu where it lacks instructions."""

import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from onepass.kernels.cpu import build
from onepass.kernels.cpu.instruction_sets import cpu_features
from onepass.kernels.cpu.libraries import COMMON_FLAGS, SOURCES

NOT_EMULATED = ("avx512f", "avx_vnni")  # by qemu


@dataclass(frozen=True)
class Toolchain:
    compiler: str
    emulator: tuple[str, ...]

    def compile(self, source: Path, flags: Sequence[str], program: Path) -> list[str]:
        """The command that runs the program."""
        command = [self.compiler, *COMMON_FLAGS, *flags, f"-I{SOURCES}", str(source), "-o", str(program)]
        subprocess.run(command, check=True)
        return [*self.emulator, str(program)]


def toolchain(machine: str, needs: Sequence[str]) -> Toolchain:
    """For CPUs of a machine with these features, by Linux's names; skips by name where something is missing."""
    lacking = [name for name in needs if name not in cpu_features()]
    here = platform.machine() == machine
    emulated = not here or (machine == "aarch64" and lacking)
    emulator = shutil.which(f"qemu-{machine}") or shutil.which(f"qemu-{machine}-static")
    if here and lacking and (not emulated or emulator is None):
        pytest.skip(f"needs a CPU with {', '.join(lacking)}" + (f" or qemu-{machine}" if emulated else ""))
    compiler = build.find_compiler() if here else shutil.which(f"{machine}-linux-gnu-g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler" if here else f"needs {machine}-linux-gnu-g++")
    if not emulated:
        return Toolchain(compiler, ())
    if emulator is None:
        pytest.skip(f"needs qemu-{machine} (Debian: qemu-user)")
    if set(needs) & set(NOT_EMULATED):
        pytest.skip("qemu emulates neither AVX-512 nor AVX-VNNI")
    return Toolchain(compiler, (emulator, "-cpu", "max", *(() if here else ("-L", f"/usr/{machine}-linux-gnu"))))
