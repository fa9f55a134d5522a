"""Builds the environments with other people's clients: `.clients-venv` (cohere, litellm, … and schemathesis) and
`.decision-clients-venv` (openai 3, typesafe-sdk, pydantic-ai), which do not agree with one another.

Small wheels, through the user's own pip settings, once for each file of requirements. Where that cannot be done, this
says why, leaves no environment and exits 0, and the tests that need it are skipped; with CI=true it exits 1.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]


class CannotBuild(Exception):
    """Why there is no environment; the message is for the user."""


@dataclass(frozen=True)
class ClientEnvironment:
    requirements: Path
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def stamp(self) -> Path:
        return self.folder / "built-from.sha256"

    def is_built(self) -> bool:
        built = self.python.exists() and self.stamp.is_file()
        return built and self.stamp.read_text(encoding="utf-8").strip() == self.built_from()

    def built_from(self) -> str:
        return hashlib.sha256(self.requirements.read_bytes()).hexdigest()

    def build(self) -> None:
        """The file names every package, so pip need not search; that they agree is checked afterwards."""
        shutil.rmtree(self.folder, ignore_errors=True)
        run([sys.executable, "-m", "venv", str(self.folder)], "a virtual environment could not be made")
        print("clients' environment: installing", self.requirements.name, flush=True)
        listed = ["--no-deps", "--no-compile", "--only-binary", ":all:", "--requirement", str(self.requirements)]
        self.pip(["install", *listed], "pip failed")
        self.pip(["check"], "the packages do not agree")
        self.stamp.write_text(self.built_from() + "\n", encoding="utf-8")

    def pip(self, arguments: list[str], complaint: str) -> None:
        run([str(self.python), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments], complaint)


RERANK_CLIENTS = ClientEnvironment(HERE / "requirements.txt", ROOT / ".clients-venv")
DECISION_CLIENTS = ClientEnvironment(HERE / "decision_requirements.txt", ROOT / ".decision-clients-venv")
PYTHON = RERANK_CLIENTS.python


def is_built() -> bool:
    return RERANK_CLIENTS.is_built()


def main() -> int:
    failed = 0
    for environment in (RERANK_CLIENTS, DECISION_CLIENTS):
        if environment.is_built():
            print(f"clients' environment: {environment.folder.name} is up to date")
            continue
        try:
            environment.build()
        except CannotBuild as reason:
            shutil.rmtree(environment.folder, ignore_errors=True)
            print(f"clients' environment: no {environment.folder.name}, so its clients are not tried\n  {reason}")
            failed = 1
        else:
            print(f"clients' environment: built {environment.folder.name}")
    return failed if os.environ.get("CI") == "true" else 0


def run(command: list[str], complaint: str) -> None:
    done = subprocess.run(command, stdout=PIPE, stderr=STDOUT, text=True, check=False)
    if done.returncode != 0:
        lines = done.stdout.splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-3:]
        raise CannotBuild(f"{complaint}: {errors[-1].strip() if errors else 'it said nothing'}")


if __name__ == "__main__":
    sys.exit(main())
