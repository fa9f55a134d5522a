"""The Dockerfiles name files, extras, commands and probes that exist. No container is built here."""

import re
import shlex
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from onepass.cli.main import build_parser
from onepass.server.routes.pages import PAGES

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docker").glob("Dockerfile.*"))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


def instructions(file: Path) -> list[tuple[str, str]]:
    """(INSTRUCTION, the rest), lines joined, comments left out."""
    text = "\n".join(line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def shell_commands(file: Path) -> list[list[str]]:
    """Words of every command of RUN and of a CMD in shell form, in order."""
    texts = [rest for name, rest in instructions(file) if name in ("RUN", "CMD") and not rest.startswith("[")]
    parts = [part.strip() for text in texts for part in re.split(r"&&|;|\bthen\b", text)]
    return [shlex.split(part.replace("exec ", "")) for part in parts if part]


def test_there_is_one_for_cpus_and_one_for_nvidia_gpus() -> None:
    assert [file.name for file in FILES] == ["Dockerfile.cpu", "Dockerfile.cuda"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_is_copied_exists_and_is_not_ignored(file: Path) -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    copied = [word for name, rest in instructions(file) if name == "COPY" for word in rest.split()[:-1]]
    assert {"pyproject.toml", "constraints.txt", "src"} <= set(copied)
    for path in copied:
        assert (ROOT / path).exists()
        assert ignored[0] == "*"
        assert f"!{path}" in ignored
        assert not any(fnmatch(path, pattern) for pattern in ignored[1:] if not pattern.startswith("!"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_extras_and_commands_exist(file: Path) -> None:
    commands = shell_commands(file)
    (install,) = [words for words in commands if words[:2] == ["pip", "install"]]
    extras = install[-1].removeprefix(".[").removesuffix("]").split(",")
    assert set(extras) <= set(EXTRAS)
    ours = [words[words.index("onepass") + 1 :] for words in commands if "onepass" in words and "useradd" not in words]
    assert [words[0] for words in ours][-2:] == ["compile", "serve"]
    for words in ours:
        arguments = build_parser().parse_args([re.sub(r"\$\{\w*DTYPE\}", "auto", word) for word in words])
        assert arguments.model.startswith("${")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_server_is_probed_where_it_listens_and_is_not_root(file: Path) -> None:
    found = dict(instructions(file))  # of each, the last
    serve = shell_commands(file)[-1]
    assert serve[serve.index("--port") + 1] == found["EXPOSE"]
    probe = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", found["HEALTHCHECK"])
    assert probe is not None
    assert probe.group(1) == found["EXPOSE"]
    assert probe.group(2) in {page.path for page in PAGES}
    assert found["USER"] == "onepass"
    assert found["STOPSIGNAL"] == "SIGTERM"
