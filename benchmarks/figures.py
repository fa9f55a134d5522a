"""docs/performance.md and the table of README.md, made from result files: `python benchmarks/figures.py` (`make docs`).

Both are Jinja templates in benchmarks/templates; every figure in them is read from a JSON file below
benchmarks/results. A file that is not there, a field that it does not have and a row that is void are errors. A file
that was measured on a tree with uncommitted changes, or without a commit, needs a note that says so. A test compares
the pages with what this script makes.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from onepass.bench.workloads import SHAPES

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TEMPLATES = ROOT / "benchmarks" / "templates"
README_TABLE = ("<!-- figures: made by benchmarks/figures.py -->\n", "<!-- /figures -->")
SILENT_OPTIONS = ("--quiet", "--json")  # they change what is printed, not what is measured
SCRATCH_OPTION = "--out"


class FigureError(Exception):
    """A template names a figure that no result file holds."""


@dataclass(frozen=True)
class Result:
    """A result file. Templates read `data` by its members, `row` and `peer` for those of a benchmark."""

    path: Path
    data: dict[str, Any]

    @classmethod
    def named(cls, part: str, folder: Path = RESULTS) -> "Result":
        """The file whose name contains `part`, such as its time stamp."""
        paths = sorted(folder.rglob(f"*{part}*.json"))
        if len(paths) != 1:
            raise FigureError(f"{part!r} must be part of one file's name in {folder.name}; it is part of {len(paths)}")
        return cls(paths[0], json.loads(paths[0].read_text(encoding="utf-8")))

    def row(self, mode: str, dtype: str | None = None, purpose: str = "modes") -> dict[str, Any]:
        wanted = {"mode": mode, "dtype": dtype, "purpose": purpose}
        return self._sound([row for row in self.data["rows"] if _matches(row, wanted)], wanted)

    def peer(self, peer: str, dtype: str | None = None) -> dict[str, Any]:
        wanted = {"peer": peer, "dtype": dtype}
        return self._sound([row for row in self.data["peers"] if _matches(row, wanted)], wanted)

    def _sound(self, rows: list[dict[str, Any]], wanted: dict[str, str | None]) -> dict[str, Any]:
        if len(rows) != 1:
            raise FigureError(f"{self.path.name} must have one row of {wanted}; it has {len(rows)}")
        if rows[0]["void"]:
            raise FigureError(f"{self.path.name}: the row of {wanted} is void: {'; '.join(rows[0]['void'])}")
        return rows[0]

    def cite(self, note: str = "") -> str:
        """A link to the file under the commit that it was measured at."""
        commit = str(self.data.get("commit") or "")
        if not note and (not commit or commit.endswith("-dirty")):
            raise FigureError(f"{self.path.name} has the commit {commit or 'unknown'}: give a note that says so")
        shown = commit[:7] + ("-dirty" if commit.endswith("-dirty") else "") if commit else "no commit"
        link = f"[{shown}](../{self.path.relative_to(ROOT)})"
        return f"{link}, {note}" if note else link

    @property
    def command(self) -> str:
        """As it can be typed again."""
        words = self.data["command"].split()
        kept = []
        for word, before in zip(words, ["", *words], strict=False):
            if word not in (*SILENT_OPTIONS, SCRATCH_OPTION) and before != SCRATCH_OPTION:
                kept.append(word)
        return " ".join(kept)

    @property
    def roof(self) -> float:
        """TFLOP/s of a large product in the same run."""
        return float(self.data["ceilings"][0]["flops_per_second"]) / 1e12


def _matches(row: dict[str, Any], wanted: dict[str, str | None]) -> bool:
    return all(value is None or row[name] == value for name, value in wanted.items())


def rounded(value: float, digits: int = 0) -> str:
    return f"{float(value):,.{digits}f}"


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def scientific(value: float) -> str:
    """4e-3, where Python writes 4e-03."""
    mantissa, _, exponent = f"{float(value):.0e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def environment(results: Path = RESULTS) -> jinja2.Environment:
    """An unknown name in a template is an error."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    made.globals.update(result=lambda part: Result.named(part, results), shapes=SHAPES, tpu_tables=tpu_tables)
    made.filters.update(rounded=rounded, percent=percent, scientific=scientific)
    return made


def tpu_tables() -> dict[str, str]:
    """Programs compiled for TPUs and what the compiler predicts, as Markdown; empty where nothing was compiled."""
    import tpu_aot

    kept = tpu_aot.Kept(tpu_aot.RESULTS)
    if kept.empty:
        return {"matrix": "", "predictions": ""}
    return {"matrix": _table(list(tpu_aot.matrix(kept))), "predictions": _table(list(tpu_aot.predictions(kept)))}


def _table(lines: Sequence[str]) -> str:
    """Headings without a row are no table."""
    return "\n".join(lines) if len(lines) > 2 else ""


def pages() -> dict[Path, str]:
    """Every page that is made here, by its path."""
    templates = environment()
    readme = ROOT / "README.md"
    table = templates.get_template("readme_table.md").render()
    return {
        ROOT / "docs" / "performance.md": templates.get_template("performance.md").render(),
        readme: with_table(readme.read_text(encoding="utf-8"), table),
    }


def with_table(page: str, table: str) -> str:
    """The page with the part between the two comments replaced."""
    begin, end = README_TABLE
    if page.count(begin) != 1 or page.count(end) != 1:
        raise FigureError(f"README.md must have {begin.strip()} and {end} once each")
    before, _, rest = page.partition(begin)
    return before + begin + table + end + rest.partition(end)[2]


def main() -> int:
    try:
        made = pages()
    except (FigureError, jinja2.TemplateError) as error:
        print(f"figures: {error}", file=sys.stderr)
        return 1
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
