"""Two revisions, in a small real repository: each runs on its own sources, in a worktree that is gone afterwards."""

import subprocess
from pathlib import Path

import pytest

from onepass.bench.offline.revisions import Revisions
from onepass.errors import ConfigError, RequestError

PROGRAM = """\
import json, pathlib, subprocess, sys
here = pathlib.Path(__file__).parent
commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True).stdout.strip()
print("a table")
print(json.dumps({{"object": "benchmark", "commit": commit{wrong}, "speed": {speed}, "arguments": sys.argv[1:]}}))
"""


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Three commits, tagged fast, slow and wrong (which says it is another)."""
    cli = tmp_path / "src" / "onepass" / "cli"
    cli.mkdir(parents=True)
    (tmp_path / "src" / "onepass" / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = []\n', encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    for tag, speed, wrong in (("fast", 2, ""), ("slow", 1, ""), ("wrong", 1, '[::-1] + "x"')):
        (cli / "main.py").write_text(PROGRAM.format(speed=speed, wrong=wrong), encoding="utf-8")
        git(tmp_path, "add", "--all")
        git(tmp_path, "commit", "--quiet", "-m", tag)
        git(tmp_path, "tag", tag)
    return tmp_path


def test_each_revision_runs_its_own_sources(repository: Path) -> None:
    told: list[str] = []
    revisions = Revisions(repository, None, told.append)
    fast, slow = (revisions.run(tag, ["tiny", "--workload", "small"]) for tag in ("fast", "slow"))
    assert (fast["speed"], slow["speed"]) == (2, 1)
    assert fast["arguments"] == ["bench", "tiny", "--workload", "small", "--json"]
    assert fast["commit"] == git(repository, "rev-parse", "fast")
    assert git(repository, "worktree", "list").count("\n") == 0  # only the repository itself
    assert len(told) == 2


def test_a_run_of_another_revision_is_refused(repository: Path) -> None:
    with pytest.raises(ConfigError, match=r"was asked for and .* was run"):
        Revisions(repository, None, lambda line: None).run("wrong", [])
    assert git(repository, "worktree", "list").count("\n") == 0


def test_an_unknown_revision_is_the_callers_mistake(repository: Path) -> None:
    with pytest.raises(RequestError, match="no git revision 'nowhere'"):
        Revisions(repository, None, lambda line: None).run("nowhere", [])
