"""The same benchmark at two git revisions, each in a worktree of its own, one after the other.

A revision whose dependencies are those of this checkout runs under this Python, on its own sources; any other gets a
virtual environment. Judging the two documents is `compare`.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onepass.bench.document import Document, read_json
from onepass.errors import ConfigError, RequestError

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Revisions:
    """`python`: run both with this one; None: decide for each revision."""

    repository: Path
    python: Path | None
    tell: Tell

    def run(self, revision: str, arguments: Sequence[str]) -> Document:
        """`onepass bench` with these arguments as it is at `revision`."""
        commit = self._git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").strip()
        if not commit:
            raise RequestError("unknown_revision", f"no git revision {revision!r} in {self.repository.name}")
        with tempfile.TemporaryDirectory(prefix="onepass-revision-") as scratch:
            tree = Path(scratch) / "tree"
            self._git("worktree", "add", "--detach", str(tree), commit, check=True)
            try:
                return self._bench(tree, commit, arguments)
            finally:
                self._git("worktree", "remove", "--force", str(tree), check=True)

    def _bench(self, tree: Path, commit: str, arguments: Sequence[str]) -> Document:
        python = self.python or self._python(tree)
        self.tell(f"running {commit[:10]} with {python}")
        command = [str(python), "-m", "onepass.cli.main", "bench", *arguments, "--json"]
        # Before anything installed: the revision's own sources.
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        printed = tree.parent / "printed.json"
        with printed.open("wb") as out:
            done = subprocess.run(command, cwd=tree, env=environment, stdout=out, check=False)
        if done.returncode not in (0, 1):
            raise ConfigError(f"`onepass bench` of {commit[:10]} exited with {done.returncode}; its reason is above")
        document = read_json(printed)
        if not str(document["commit"]).startswith(commit):
            raise ConfigError(f"{commit[:10]} was asked for and {document['commit']} was run")
        return document

    def _python(self, tree: Path) -> Path:
        if _dependencies(tree) == _dependencies(self.repository):
            return Path(sys.executable)
        environment = tree.parent / "venv"
        self.tell(f"its dependencies differ: building {environment}")
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        python = environment / "bin" / "python"
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-e", str(tree)]
        constraints = tree / "constraints.txt"
        subprocess.run([*install, *(["-c", str(constraints)] if constraints.exists() else [])], check=True)
        return python

    def _git(self, *arguments: str, check: bool = False) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.repository, capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise ConfigError(f"git {arguments[0]} failed: {done.stderr.strip()[-300:]}")
        return done.stdout


def find_repository() -> Path:
    """The checkout around the working directory."""
    toplevel = subprocess.run(["git", "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=False)
    if toplevel.returncode != 0:
        raise ConfigError("revisions are compared in a git checkout; there is none around this folder")
    return Path(toplevel.stdout.strip())


def _dependencies(tree: Path) -> object:
    """What pip would be told: dependencies, and the versions they are held to."""
    constraints = tree / "constraints.txt"
    held = constraints.read_text(encoding="utf-8") if constraints.exists() else ""
    return tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"], held
