"""Pages with figures are what `benchmarks/figures.py` makes of result files, and no result file lies there uncited."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest

from benchmark_scripts import benchmark_script

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
# The log keeps what was true on its day, also names of files that are gone.
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "log.md")]
CITED = re.compile(r"benchmarks/results/([\w./-]+\.\w+)")


@pytest.fixture(scope="module")
def figures() -> Iterator[Any]:
    with benchmark_script("figures") as module:
        yield module


def stored(folder: Path, name: str = "bench-small-1", **members: Any) -> None:
    row = {"mode": "auto", "dtype": "float32", "purpose": "modes", "items_per_second": 12.5, "void": []}
    document = {"commit": "0123456789", "command": "onepass bench", "rows": [row | members.pop("row", {})], "peers": []}
    (folder / f"{name}.json").write_text(json.dumps(document | members), encoding="utf-8")


def test_pages_are_what_the_command_makes_of_result_files(figures: Any) -> None:
    for path, text in figures.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: run `make docs`"


def test_every_cited_result_exists_and_every_result_is_cited() -> None:
    cited = {name for page in PAGES for name in CITED.findall(page.read_text(encoding="utf-8"))}
    assert cited - {"tpu-aot.json"} == {str(path.relative_to(RESULTS)) for path in RESULTS.rglob("*.*")} - {
        "tpu-aot.json"
    }


def test_a_figure_comes_from_its_file(figures: Any, tmp_path: Path) -> None:
    stored(tmp_path)
    page = figures.environment(tmp_path).from_string('{{ result("small").row("auto").items_per_second | rounded(1) }}')
    assert page.render() == "12.5"
    stored(tmp_path, row={"items_per_second": 1234.56})
    assert page.render() == "1,234.6"


def test_a_void_row_is_refused(figures: Any, tmp_path: Path) -> None:
    stored(tmp_path, row={"void": ["compiled in the timed window"]})
    with pytest.raises(figures.FigureError, match="compiled in the timed window"):
        figures.Result.named("small", tmp_path).row("auto")


def test_what_no_file_holds_is_refused(figures: Any, tmp_path: Path) -> None:
    stored(tmp_path)
    templates = figures.environment(tmp_path)
    with pytest.raises(jinja2.UndefinedError, match="tokens_per_second"):
        templates.from_string('{{ result("small").row("auto").tokens_per_second | rounded }}').render()
    with pytest.raises(figures.FigureError, match="serial"):
        templates.from_string('{{ result("small").row("serial") }}').render()
    with pytest.raises(figures.FigureError, match="part of 0"):
        templates.from_string('{{ result("large") }}').render()
    stored(tmp_path, "bench-small-2")
    with pytest.raises(figures.FigureError, match="part of 2"):
        templates.from_string('{{ result("small") }}').render()


@pytest.mark.parametrize("commit", ["0123456789-dirty", None])
def test_a_commit_that_is_unclear_needs_a_note(figures: Any, commit: str | None) -> None:
    result = figures.Result(RESULTS / "bench.json", {"commit": commit})
    with pytest.raises(figures.FigureError, match="note"):
        result.cite()
    assert result.cite("tree of abc").endswith("bench.json), tree of abc")
    clean = figures.Result(RESULTS / "bench.json", {"commit": "0123456789"})
    assert clean.cite() == "[0123456](../benchmarks/results/bench.json)"


def test_commands_are_shown_as_they_can_be_typed_again(figures: Any) -> None:
    result = figures.Result(
        RESULTS / "x.json", {"command": "onepass bench m --quiet --out /tmp/r --dtype float32 --json"}
    )
    assert result.command == "onepass bench m --dtype float32"


def test_only_the_table_between_the_comments_is_replaced(figures: Any) -> None:
    begin, end = figures.README_TABLE
    assert figures.with_table(f"a\n{begin}old\n{end}\nb\n", "new\n") == f"a\n{begin}new\n{end}\nb\n"
    with pytest.raises(figures.FigureError, match="once each"):
        figures.with_table("a\n", "new\n")
