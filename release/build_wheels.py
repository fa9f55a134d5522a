"""Builds wheels with the C++ libraries inside, for x86-64 and ARM64 Linux: `make wheels`.

Zig (PyPI `ziglang`) is the compiler: Clang with the headers of any glibc, for any machine, on any machine. Each general
library is compiled once per instruction set, against glibc 2.28 and with the C++ runtime linked statically; what a
library asks of the system is checked before the wheel is written. The wheel is the package of this checkout with the
libraries as data; nothing is left in the checkout. Which libraries there are is `onepass.kernels.cpu.libraries`.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from elf import read_shared_object

from onepass.kernels.cpu.build import ffi_headers
from onepass.kernels.cpu.compiler import NotBuilt, compile_library
from onepass.kernels.cpu.instruction_sets import InstructionSet, instruction_sets
from onepass.kernels.cpu.libraries import LIBRARIES, SOURCES, Library
from onepass.kernels.cpu.prebuilt import ffi_version, file_name

ROOT = Path(__file__).parents[1]
ZIG = ROOT / ".zig" / "ziglang" / "zig"
MACHINES = ("x86_64", "aarch64")
GLIBC = (2, 28)  # of Debian 10 and RHEL 8; jaxlib's own wheels need 2.27 or newer
SYSTEM_LIBRARIES = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-")
PREBUILT = Path("src", "onepass", "kernels", "cpu", "prebuilt")
# The package is Python but for the libraries, which are not of any Python's ABI.
SETUP = """
from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel


class PlatformWheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", "{platform}"


setup(cmdclass={{"bdist_wheel": PlatformWheel}})
"""


class WheelError(Exception):
    """Why a wheel was not built."""


@dataclass(frozen=True)
class Task:
    library: Library
    instruction_set: InstructionSet

    def path(self, folder: Path) -> Path:
        return folder / file_name(self.library, self.instruction_set, ffi_version(ffi_headers()))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Builds wheels with the C++ libraries inside.")
    parser.add_argument("--machine", nargs="+", choices=MACHINES, default=MACHINES, help="default: both")
    parser.add_argument("--instruction-sets", nargs="+", metavar="NAME", help="default: all of a machine")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR", help="default: dist")
    parser.add_argument("--zig", type=Path, default=ZIG, metavar="FILE", help="default: .zig/ziglang/zig")
    options = parser.parse_args(arguments)
    try:
        for machine in options.machine:
            print(build_wheel(machine, options.instruction_sets, options.zig, options.out), flush=True)
    except (WheelError, NotBuilt, OSError) as error:
        print(f"build_wheels: {error}", file=sys.stderr)
        return 1
    return 0


def build_wheel(machine: str, names: Sequence[str] | None, zig: Path, out: Path) -> Path:
    """For the instruction sets of these names, or for all."""
    tasks = [
        Task(library, row)
        for library in LIBRARIES
        for row in instruction_sets(library, machine)
        if names is None or row.name in names
    ]
    if not tasks:
        raise WheelError(f"{machine} has no instruction set named {' or '.join(names or ())}")
    with tempfile.TemporaryDirectory(prefix="onepass-wheel-") as scratch:
        tree = Path(scratch, "tree")
        copy_package(tree)
        compile_libraries(tasks, zig, tree / PREBUILT)
        check_sources(tree / PREBUILT.with_name("csrc"))
        return pack_wheel(tree, f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}", out)


def copy_package(tree: Path) -> None:
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "prebuilt"))


def compile_libraries(tasks: Sequence[Task], zig: Path, folder: Path) -> None:
    folder.mkdir()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda task: compile_task(task, zig, folder), tasks))


def compile_task(task: Task, zig: Path, folder: Path) -> None:
    row, output = task.instruction_set, task.path(folder)
    system = f"{row.machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        built = Path(scratch, output.name)
        # Zig builds its C++ runtime when it links, once per machine: for any CPU of it, as no flag says which.
        compiler = [str(zig), "c++", "-target", system, "-s"]
        compile_library(task.library, compiler, [f"-mcpu={row.cpu}"], ffi_headers(), built)
        check_library(built, row.machine)
        built.replace(output)
    print(f"{output.name}: {output.stat().st_size // 1024} KiB", file=sys.stderr, flush=True)


def check_sources(copied: Path) -> None:
    """The package has the sources that were compiled: with others its libraries would never be loaded."""
    for path in (path for path in copied.rglob("*") if path.is_file()):
        if path.read_bytes() != (SOURCES / path.relative_to(copied)).read_bytes():
            raise WheelError(f"{path.name} has changed since the build began; build again")


def check_library(path: Path, machine: str) -> None:
    """It is for the machine, and needs only libraries that every glibc system has, no newer than the wheel says."""
    library = read_shared_object(path)
    if library.machine != machine:
        raise WheelError(f"{path.name} is for {library.machine}, not for {machine}")
    foreign = [name for name in library.libraries if not name.startswith(SYSTEM_LIBRARIES)]
    if foreign:
        raise WheelError(f"{path.name} needs {', '.join(foreign)}, which not every Linux has")
    if library.glibc > GLIBC:
        needed, limit = (".".join(map(str, version)) for version in (library.glibc, GLIBC))
        raise WheelError(f"{path.name} needs glibc {needed}; the limit is {limit}")


def pack_wheel(tree: Path, platform: str, out: Path) -> Path:
    (tree / "setup.py").write_text(SETUP.format(platform=platform), encoding="utf-8")
    folder = tree.parent / "wheel"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(tree)], check=True, cwd=tree.parent)
    (wheel,) = folder.glob("onepass-*.whl")
    libraries = {path.name for path in (tree / PREBUILT).glob("*.so")}
    if missing := libraries - {Path(name).name for name in zipfile.ZipFile(wheel).namelist()}:
        raise WheelError(f"{wheel.name} lacks {', '.join(sorted(missing))}")
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(wheel, out / wheel.name))


if __name__ == "__main__":
    sys.exit(main())
