"""`onepass visualize` on a tiny model: every mode's figures are the engine's own, and the page shows them."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from onepass.cli.main import main
from onepass.html_report.figures import number
from onepass.trace import TraceStep
from onepass.visualize.drawing import timeline

QUERY, ITEMS, ITEM = 40, 4, 12


def test_the_page_has_the_figures_of_every_mode(
    checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "modes.html"
    sizes = ["--query-tokens", str(QUERY), "--items", str(ITEMS), "--item-tokens", str(ITEM), "--repeats", "1"]
    model = ["--model", str(checkpoint("llama3")), "--dtype", "float32", "--chunk-size", "2"]
    assert main(["visualize", "small", *sizes, *model, "--out", str(out), "--quiet", "--json"]) == 0
    modes = {one["mode"]: one for one in json.loads(capsys.readouterr().out)["modes"]}
    whole = QUERY + ITEMS * ITEM
    assert modes["packed-segment"]["computed_tokens"] == modes["packed-dense"]["computed_tokens"] == whole
    assert modes["serial"]["tokens_computed_twice"] == (ITEMS - 1) * QUERY
    assert modes["chunked"]["tokens_computed_twice"] == QUERY
    assert [modes[name]["steps"] for name in ("serial", "packed-segment", "extend")] == [ITEMS, 1, 2]
    for name, one in modes.items():
        assert one["tiles"] > one["tiles_needed"] if name == "packed-dense" else one["tiles"] == one["tiles_needed"]
        assert sum(step["tokens"] for step in one["trace"]["steps"]) == one["computed_tokens"]
    context, item = QUERY * (QUERY + 1) // 2, ITEM * (ITEM + 1) // 2
    assert modes["packed-segment"]["pairs_seen"] == context + ITEMS * (ITEM * QUERY + item)
    assert modes["serial"]["pairs_seen"] == ITEMS * (QUERY + ITEM) * (QUERY + ITEM + 1) // 2
    html = out.read_text()
    for name, one in modes.items():
        assert f'<td data-heading="mode">{name}</td>' in html
        assert f'<td data-heading="tiles">{one["tiles"]:,}</td>' in html
    assert not re.search(r"<script|src=|https?:", html)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["nothing"], "workload must be one of"), (["--modes", "fast"], "must be some of"), (["--out", "/no/f"], "--out")],
)
def test_wrong_options_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["visualize", *words])
    except SystemExit as end:
        status = int(str(end.code))
    assert status == 2
    assert said in capsys.readouterr().err


def test_a_mode_far_slower_than_the_others_is_cut() -> None:
    def step(collected: float) -> TraceStep:
        return TraceStep(1, 64, 9, 9, 16, 0, 1, 1, 0.0, collected, collected, 0)

    drawn = timeline([(f"mode {ms}", [step(ms)], ms) for ms in (10.0, 12.0, 20.0, 900.0)])
    assert ">900 ms, cut<" in drawn
    assert f">{number(20.0)} ms<" in drawn
    assert drawn.count('class="cut"') == 1
