"""Builds `.clients-venv`, the environment with other people's clients (openai, cohere, litellm, …) and schemathesis.

A few hundred megabytes of small wheels, through the user's own pip settings, once for each requirements.txt. Where that
cannot be done, this says why, leaves no environment and exits 0, and the tests that need it are skipped; with CI=true
it exits 1.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE, STDOUT

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
ENVIRONMENT = Path(__file__).parents[2] / ".clients-venv"
PYTHON = ENVIRONMENT / "bin" / "python"
STAMP = ENVIRONMENT / "built-from.sha256"


class CannotBuild(Exception):
    """Why there is no environment; the message is for the user."""


def main() -> int:
    if is_built():
        print(f"clients' environment: {ENVIRONMENT.name} is up to date")
        return 0
    try:
        build()
    except CannotBuild as reason:
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        print(f"clients' environment: none, so real clients and schemathesis are not tried\n  {reason}")
        return 1 if os.environ.get("CI") == "true" else 0
    STAMP.write_text(built_from() + "\n", encoding="utf-8")
    print(f"clients' environment: built {ENVIRONMENT.name}")
    return 0


def is_built() -> bool:
    return PYTHON.exists() and STAMP.is_file() and STAMP.read_text(encoding="utf-8").strip() == built_from()


def built_from() -> str:
    return hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()


def build() -> None:
    """The file names every package, so pip need not search; that they agree is checked afterwards."""
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(ENVIRONMENT)], "a virtual environment could not be made")
    print("clients' environment: installing", REQUIREMENTS.name, flush=True)
    listed = ["--no-deps", "--no-compile", "--only-binary", ":all:", "--requirement", str(REQUIREMENTS)]
    pip(["install", *listed], "pip failed")
    pip(["check"], "the packages do not agree")


def pip(arguments: list[str], complaint: str) -> None:
    run([str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments], complaint)


def run(command: list[str], complaint: str) -> None:
    done = subprocess.run(command, stdout=PIPE, stderr=STDOUT, text=True, check=False)
    if done.returncode != 0:
        lines = done.stdout.splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-3:]
        raise CannotBuild(f"{complaint}: {errors[-1].strip() if errors else 'it said nothing'}")


if __name__ == "__main__":
    sys.exit(main())
