"""The machine's C++ compiler: which it is, and a library of csrc/ compiled and linked with it into a file.

Where the file goes, and when it is compiled anew, is `build`.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from onepass.kernels.cpu import libraries
from onepass.kernels.cpu.libraries import Library


class NotBuilt(Exception):
    """There is no native code on this machine; the message says why."""


@cache
def compiler_version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout


def find_compiler() -> str | None:
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def compile_library(
    library: Library, compiler: Sequence[str], cpu_flags: Sequence[str], headers: str, output: Path
) -> None:
    """The sources in processes side by side, then linked; `cpu_flags` say which CPU the sources are compiled for."""
    objects = [output.with_name(f"{output.stem}-{name.replace('/', '-')}.o") for name in library.sources]
    flags = [*libraries.COMMON_FLAGS, *cpu_flags, "-I", str(libraries.SOURCES), "-isystem", headers]

    def run(*arguments: str | Path) -> subprocess.Popen[str]:
        line = [*compiler, *map(str, arguments)]
        return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def finish(processes: list[subprocess.Popen[str]]) -> None:
        errors = [process.communicate()[1].strip() for process in processes]
        failed = [error for process, error in zip(processes, errors, strict=True) if process.returncode != 0]
        if failed:
            raise NotBuilt(f"{compiler[0]} failed: {failed[0][-300:]}")

    finish(
        [
            run(*flags, "-c", *libraries.OWN_FLAGS.get(name, ()), libraries.SOURCES / name, "-o", path)
            for name, path in zip(library.sources, objects, strict=True)
        ]
    )
    finish([run("-O3", "-shared", *objects, "-o", output)])
