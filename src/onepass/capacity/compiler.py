"""Programs compiled for TPUs that are not here, in a process of their own: `compile_programs(...)`.

The caller's process stays as it is, and a compiler that dies is an error with its last words. What is compiled is
`dry_run`'s answer; the other end of the line is `compile_process`.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from onepass.capacity.compile_process import job_of
from onepass.capacity.deployment import Deployment
from onepass.engine.programs.builder import Program
from onepass.errors import CompilerFailed, ConfigError
from onepass.parallel.topology import COMPILER_ONLY

PACKAGE = "libtpu"
DEFAULT_FOLDER = ".libtpu"  # under the working directory
LAST_WORDS = 3  # lines of a dead compiler that are worth repeating


@dataclass(frozen=True)
class Compiled:
    """The compiler's figures for one device. `does_not_fit` holds its words where the program is too large."""

    program: Program
    seconds: float = 0.0
    arguments: int = 0  # weights and the pool among them
    outputs: int = 0  # but the pool, which is written in place
    temporaries: int = 0
    code: int = 0
    cycles: float = 0.0
    kernel_flops: float = 0.0  # that kernels declare, for a full step; 0 where there are none
    does_not_fit: str | None = None


def find_libtpu(folder: Path | None) -> Path | None:
    """The folder to look for the compiler in, None where it is installed. Raises if it is nowhere."""
    if folder is not None and (folder / PACKAGE).is_dir():
        return folder
    if folder is None and importlib.util.find_spec(PACKAGE) is not None:
        return None
    where = "is not installed" if folder is None else f"is not in {folder}"
    raise ConfigError(
        f"compiling for a TPU needs the package {PACKAGE}, which {where}: pip install --no-deps --target "
        f"{folder or DEFAULT_FOLDER} {PACKAGE} (on x86-64) puts it where onepass looks, pip install 'onepass[plan]' "
        "installs it, and --no-compile gives the roofline alone"
    )


def compile_programs(
    deployment: Deployment, programs: Sequence[Program], libtpu: Path | None = None
) -> Iterator[Compiled]:
    """All in one process, one after another, each as it comes."""
    folder, done = find_libtpu(libtpu), 0
    with tempfile.TemporaryFile("w+") as words:
        process = subprocess.Popen(
            [sys.executable, "-m", "onepass.capacity.compile_process"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, text=True, env=_environment(folder),
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with process.stdin as line:
                json.dump(job_of(deployment, list(programs)), line)
            for program, answer in zip(programs, process.stdout, strict=False):
                told = json.loads(answer)
                if "refused" in told:
                    raise ConfigError(told["refused"])
                done += 1
                yield Compiled(program, **told)
            process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        words.seek(0)
        if done < len(programs):
            raise CompilerFailed(_failure(deployment, programs[done], process.returncode, words.read()))


def _environment(libtpu: Path | None) -> dict[str, str]:
    """This process's, with what lets libtpu compile without a TPU. A folder that was given goes before all others, and
    before the library that JAX may have found for this process."""
    own = {name: value for name, value in os.environ.items() if libtpu is None or name != "TPU_LIBRARY_PATH"}
    paths = ([str(libtpu.resolve())] if libtpu else []) + [path for path in sys.path if path]
    return {**own, **COMPILER_ONLY, "PYTHONPATH": os.pathsep.join(paths)}


def _failure(deployment: Deployment, program: Program, status: int | None, words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    told = " | ".join(lines[-LAST_WORDS:])[-600:] or "it said nothing"
    return f"the compiler failed for {deployment.target} (program {program}; exit status {status}): {told}"
