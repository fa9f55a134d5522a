"""The README and the docs say what is: the session prints what it shows, commands parse, links and paths exist."""

import contextlib
import doctest
import io
import math
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from onepass.cli.main import build_parser
from onepass.engine.config import EngineConfig

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
NUMBER = re.compile(r"-?\d+\.\d+")
MILLISECONDS = re.compile(r"[\d,]+ ms")


def blocks(text: str, language: str) -> list[str]:
    """All fenced blocks are read, in order: a closing fence must not be taken for an opening one without language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [content for found, content in fenced if found == language]


def assert_same_output(shown: str, printed: str) -> None:
    """The same words; times may be any; printed digits may differ in the last, as other processors round."""
    shown, printed = MILLISECONDS.sub("N ms", shown).rstrip(), MILLISECONDS.sub("N ms", printed).rstrip()
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown)
    for ours, theirs in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        assert math.isclose(float(ours), float(theirs), rel_tol=1e-4, abs_tol=2e-4)


def test_the_python_session_prints_what_the_readme_shows(smollm2_gguf: Path) -> None:
    """`smollm2_gguf` fetches the model first, so that a failed download is not the README's failure."""
    sessions = blocks(README, "pycon")
    assert len(sessions) >= 4
    names: dict[str, object] = {}
    for example in doctest.DocTestParser().get_examples("\n".join(sessions)):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(example.source, "README.md", "single"), names)
        assert_same_output(example.want, printed.getvalue())
    names["scorer"].close()  # type: ignore[attr-defined]


def test_output_that_differs_is_noticed() -> None:
    assert_same_output("3 items · 73 ms\n ' Paris' 0.7725", "3 items · 1,204 ms\n ' Paris' 0.7726")
    for wrong in ("3 items · 73 ms\n ' Paris' 0.7735", "2 items · 73 ms\n ' Paris' 0.7725"):
        with pytest.raises(AssertionError):
            assert_same_output("3 items · 73 ms\n ' Paris' 0.7725", wrong)


def test_every_onepass_command_in_the_docs_parses() -> None:
    texts = [block for page in PAGES for block in blocks(page.read_text(encoding="utf-8"), "sh")]
    lines = [line.removeprefix(".venv/bin/") for text in texts for line in text.replace("\\\n", " ").splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("onepass ")]
    assert len(commands) >= 14
    for words in commands:
        assert build_parser().parse_args(words).run


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_tree_in_the_readme_exists() -> None:
    tree = next(block for block in blocks(README, "") if block.startswith("src/onepass/\n"))
    for line in tree.splitlines()[1:]:
        folder = ROOT / "src" / "onepass" if line.startswith("  ") else ROOT
        for name in line.strip().split("  ")[0].split():
            assert (folder / name).exists(), name


def test_architecture_has_a_line_for_every_package() -> None:
    package = ROOT / "src" / "onepass"
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([a-z_]+)/` \|", text, re.MULTILINE))
    assert listed == {path.parent.name for path in package.glob("*/*.py")}


def test_the_python_page_describes_every_engine_option() -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    _, _, options = text.partition("## Every option")
    assert set(re.findall(r"^\| `(\w+)` \|", options, re.MULTILINE)) == {field.name for field in fields(EngineConfig)}
