"""Virtual environments for other people's programs, beside `.venv`: `Environment` says what is in one and builds it.

Wheels through the user's own pip settings, once per set of requirements; every package is named, so that pip need not
search, and that they agree is checked afterwards. Where an environment cannot be built, `build_all` says why and leaves
none, and the tests that need it are skipped; with CI=true it is an error. Which environments there are is said by the
`build_env.py` of each folder of tests; those of PyTorch and the browser are built by their own rules.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

ROOT = Path(__file__).parents[1]


class CannotBuild(Exception):
    """Why there is no environment; the message is for the user."""


@dataclass(frozen=True)
class Environment:
    requirements: Path
    folder: Path
    script: str  # what builds it, for messages
    below: Path | None = None  # an environment whose packages it shares
    included: tuple[Path, ...] = ()  # files that the requirements include
    from_source: str = ""  # packages without wheels, as pip's --no-binary takes them
    bytecode: bool = False  # compiled at once, for programs that must start quickly

    @property
    def name(self) -> str:
        return str(self.folder.relative_to(ROOT))

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def stamp(self) -> Path:
        return self.folder / "built-from.sha256"

    def missing(self) -> str | None:
        """The environment that it would share packages with and that is not there."""
        return self.below.name if self.below is not None and not self.packages_below() else None

    def is_built(self) -> bool:
        built = self.python.exists() and self.stamp.is_file() and self.missing() is None
        return built and self.stamp.read_text(encoding="utf-8").strip() == self.built_from()

    def built_from(self) -> str:
        """Of what is asked for, and of the environment below: its folder names the version of Python."""
        files = b"".join(path.read_bytes() for path in (*self.included, self.requirements))
        return hashlib.sha256(files + "".join(map(str, self.packages_below())).encode()).hexdigest()

    def packages_below(self) -> list[Path]:
        return [] if self.below is None else sorted(self.below.glob("lib/python*/site-packages"))

    def build(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        python = sys.executable if self.below is None else str(self.below / "bin" / "python")
        run([python, "-m", "venv", "--without-pip", str(self.folder)], "a virtual environment could not be made")
        print(f"{self.name}: installing {self.requirements.name}", flush=True)
        listed = ["--no-deps", "--only-binary", ":all:", *([] if self.bytecode else ["--no-compile"])]
        if self.from_source:
            listed += ["--no-binary", self.from_source]
        self.pip(["install", *listed, "--requirement", str(self.requirements)], "pip failed")
        (packages,) = self.folder.glob("lib/python*/site-packages")
        for below in self.packages_below():
            line = f"import site; site.addsitedir({str(below)!r})\n"
            (packages / "packages-below.pth").write_text(line, encoding="utf-8")
        self.pip(["check"], "the packages do not agree")
        self.stamp.write_text(self.built_from() + "\n", encoding="utf-8")

    def pip(self, arguments: list[str], complaint: str) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check", "--no-input"]
        run([*pip, *arguments], complaint)


def build_all(environments: Iterable[Environment], otherwise: str) -> int:
    """Builds what is not up to date, and says so; the exit status. `otherwise`: what comes of having none."""
    failed = 0
    for environment in environments:
        if (missing := environment.missing()) is not None:
            print(f"{environment.name}: none, for there is no {missing}")
        elif environment.is_built():
            print(f"{environment.name}: up to date")
        else:
            try:
                environment.build()
            except CannotBuild as reason:
                shutil.rmtree(environment.folder, ignore_errors=True)
                print(f"{environment.name}: none, so {otherwise}\n  {reason}")
                failed = 1
            else:
                print(f"{environment.name}: built")
    return failed if os.environ.get("CI") == "true" else 0


def require(environment: Environment) -> Path:
    """Its Python, for a test; one that is not built skips the test, with CI=true it fails."""
    if not environment.is_built():
        reason = f"there is no {environment.name}, or it is old: python {environment.script}"
        if os.environ.get("CI") == "true" and environment.missing() is None:
            pytest.fail(reason)
        pytest.skip(reason)
    return environment.python


def run(command: list[str], complaint: str) -> None:
    done = subprocess.run(command, stdout=PIPE, stderr=STDOUT, text=True, check=False)
    if done.returncode != 0:
        lines = done.stdout.splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-3:]
        raise CannotBuild(f"{complaint}: {errors[-1].strip() if errors else 'it said nothing'}")
