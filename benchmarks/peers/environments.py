"""Finds and builds the Python environments of peers. Standard library only; packages come through the user's own pip.

The peers on PyTorch and llama.cpp share `.reference-venv` with the parity tests, whose own script builds it; every
other environment is a folder under `.peers` with the packages of the text file of its name beside this one, less those
of its `.removed.txt`, where it has one: packages that others ask for and that do harm.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from catalogue import REFERENCE

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
BUILD_REFERENCE = CHECKOUT / "tests" / "reference" / "build_env.py"
STAMP = "built-from.sha256"


class NoEnvironment(Exception):
    """Why a peer cannot run here; the message is for the user."""


def folder_of(environment: str) -> Path:
    return CHECKOUT / ".reference-venv" if environment == REFERENCE else CHECKOUT / ".peers" / environment


def find(environment: str) -> Path | None:
    """The environment's Python, if it was built from the requirements as they are now."""
    folder = folder_of(environment)
    stamp, python = folder / STAMP, folder / "bin" / "python"
    current = python.exists() and stamp.is_file() and stamp.read_text().strip() == _wanted(environment)
    return python if current else None


def build(environment: str) -> Path:
    if environment == REFERENCE:
        _run([sys.executable, str(BUILD_REFERENCE)])
    else:
        _build_own(environment)
    python = find(environment)
    if python is None:
        raise NoEnvironment(f"no environment {environment!r} could be built; see the output above")
    return python


def _requirements(environment: str) -> Path:
    return BUILD_REFERENCE.with_name("requirements.txt") if environment == REFERENCE else HERE / f"{environment}.txt"


def _removed(environment: str) -> Path:
    return HERE / f"{environment}.removed.txt"


def _wanted(environment: str) -> str:
    lists = [path for path in (_requirements(environment), _removed(environment)) if path.exists()]
    return hashlib.sha256(b"".join(path.read_bytes() for path in lists)).hexdigest()


def _build_own(environment: str) -> None:
    folder = folder_of(environment)
    shutil.rmtree(folder, ignore_errors=True)
    _run([_interpreter(), "-m", "venv", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    _run([*pip, "install", "--only-binary", ":all:", "--requirement", str(_requirements(environment))])
    if _removed(environment).exists():
        _run([*pip, "uninstall", "--yes", "--requirement", str(_removed(environment))])
    (folder / STAMP).write_text(_wanted(environment) + "\n", encoding="utf-8")


def _interpreter() -> str:
    """Python 3.11, which the pinned wheels were tried with; else the one that runs this."""
    return shutil.which("python3.11") or sys.executable


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise NoEnvironment(f"{' '.join(command[:4])} ... exited with {done.returncode}; see the output above")
