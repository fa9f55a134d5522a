"""Comparing two runs: what fails, what warns, what is refused, and who is suspected."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from onepass.bench.document import read_json
from onepass.bench.report.compare import compare
from onepass.cli.main import main
from onepass.errors import RequestError

Document = dict[str, Any]


def row(mode: str, items_per_second: float = 100.0, **changes: Any) -> Document:
    latency = {"p50": 10.0, "p95": 11.0, "p99": 12.0}
    return {
        "mode": mode, "workload": "small", "dtype": "float32", "purpose": "modes", "sweep": {}, "options": {},
        "checksum": "aa", "items_per_second": items_per_second, "latency_ms": latency, "padding_ratio": 1.05,
        "compilations": 0, "backend_compilations": 0, "ran_as": mode, "reason": "", "repeats": 10,
        "split_ms": {"encode": 1.0, "device": 8.0, "host": 1.0}, "void": [], **changes,
    }  # fmt: skip


@pytest.fixture
def old() -> Document:
    return {
        "object": "benchmark", "model": "tiny", "hardware": {"device": "cpu", "cores": 2}, "versions": {"jax": "1"},
        "settings": {"engine": {"float32": {"chunk_size": 32}}, "workload": "small"},
        "rows": [row("extend"), row("auto")],
    }  # fmt: skip


@pytest.fixture
def new(old: Document) -> Document:
    return copy.deepcopy(old)


def slow_down(document: Document, mode: str, factor: float) -> None:
    for one in document["rows"]:
        if one["mode"] == mode:
            one["items_per_second"] /= factor
            one["latency_ms"] = {name: value * factor for name, value in one["latency_ms"].items()}
            one["split_ms"]["device"] *= factor


def test_equal_runs_are_ok(old: Document, new: Document) -> None:
    found = compare(old, new)
    assert (found.verdict, [change.verdict for change in found.changes]) == ("ok", ["ok", "ok"])


def test_a_planted_slowdown_of_20_percent_fails_and_names_its_row(old: Document, new: Document) -> None:
    slow_down(new, "extend", 1.2)
    found = compare(old, new)
    assert found.verdict == "fail"
    slow, fine = found.changes
    assert (slow.name, slow.verdict, fine.verdict) == ("small float32 extend", "fail", "ok")
    assert slow.findings == ["throughput -17% (limit -10%)", "p95 +20% (limit +15%)"]
    assert slow.suspects == ["device time grew most: 8.00 -> 9.60 ms"]


def test_a_loss_within_the_limits_is_ok(old: Document, new: Document) -> None:
    slow_down(new, "extend", 1.1)
    assert compare(old, new).verdict == "ok"


def test_a_worse_p99_alone_warns(old: Document, new: Document) -> None:
    new["rows"][0]["latency_ms"]["p99"] = 15.0
    assert [change.findings for change in compare(old, new).changes] == [["p99 +25% (limit +20%)"], []]
    assert compare(old, new).verdict == "warn"


def test_a_worse_p95_alone_fails(old: Document, new: Document) -> None:
    new["rows"][0]["latency_ms"]["p95"] = 13.0
    assert compare(old, new).verdict == "fail"


def test_suspects_are_padding_modes_and_settings(old: Document, new: Document) -> None:
    slow_down(new, "auto", 1.5)
    new["rows"][1] |= {"padding_ratio": 1.4, "ran_as": "chunked", "reason": "it was cheapest"}
    new["settings"]["engine"]["float32"]["chunk_size"] = 8
    suspects = compare(old, new).changes[1].suspects
    assert suspects[:2] == ["padding ratio: 1.050 -> 1.400", "mode changed: auto -> chunked (it was cheapest)"]
    assert "settings differ: engine.float32.chunk_size 32 -> 8" in suspects


def test_a_row_that_became_void_fails(old: Document, new: Document) -> None:
    new["rows"][0] |= {"void": ["compiled in the timed window: 1"], "items_per_second": None}
    change = compare(old, new).changes[0]
    assert (change.verdict, change.suspects) == ("fail", ["compiled in the timed window: 1"])


def test_a_row_that_is_gone_warns(old: Document, new: Document) -> None:
    del new["rows"][1]
    assert [change.verdict for change in compare(old, new).changes] == ["ok", "warn"]


@pytest.mark.parametrize(
    ("where", "value", "reason"),
    [
        (("hardware", "cores"), 64, "hardware differs: cores 2 and 64"),
        (("rows", 0, "checksum"), "bb", "workload checksums differ"),
        (("model",), "other", "models differ: tiny and other"),
    ],
)
def test_other_work_or_another_machine_is_refused_unless_forced(
    old: Document, new: Document, where: tuple[Any, ...], value: Any, reason: str
) -> None:
    place: Any = new
    for step in where[:-1]:
        place = place[step]
    place[where[-1]] = value
    with pytest.raises(RequestError, match=reason):
        compare(old, new)
    forced = compare(old, new, force=True)
    assert forced.verdict == "ok"
    assert reason in forced.forced[0]


def test_runs_with_nothing_in_common_are_refused(old: Document, new: Document) -> None:
    new["rows"] = [row("chunked")]
    with pytest.raises(RequestError, match="no row of the same mode"):
        compare(old, new)


def test_the_command_exits_1_on_a_slowdown_and_2_on_a_refusal(
    old: Document, new: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "old.json", tmp_path / "new.json"]

    def run(*options: str) -> int:
        for path, document in zip(paths, (old, new), strict=True):
            path.write_text(json.dumps(document), encoding="utf-8")
        return main(["bench", "compare", *map(str, paths), *options])

    assert run() == 0
    slow_down(new, "extend", 1.2)
    assert run() == 1
    out = capsys.readouterr().out
    assert "fail: small float32 extend: throughput -17% (limit -10%)" in out
    assert out.splitlines()[-1] == "FAIL"
    assert run("--json") == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "fail"
    new["hardware"]["device"] = "another"
    assert run() == 2
    assert "hardware differs: device cpu and another" in capsys.readouterr().err
    assert run("--force") == 1


def test_what_was_printed_with_json_can_be_read_again(old: Document, tmp_path: Path) -> None:
    path = tmp_path / "printed"
    path.write_text("a table\n\n" + json.dumps(old) + "\n", encoding="utf-8")
    assert read_json(path) == old
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(RequestError, match="must hold the JSON of a benchmark"):
        read_json(path)


def test_revisions_are_of_one_machine_whatever_they_call_it(
    old: Document, new: Document, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As two files they are refused."""
    new["hardware"]["device"] = "Neoverse-N1"
    with pytest.raises(RequestError, match="hardware differs"):
        compare(old, new)
    ran = {"main~5": old, "main": new}
    monkeypatch.setattr("onepass.bench.offline.revisions.Revisions.run", lambda _, revision, __: ran[revision])
    assert main(["bench", "revisions", "main~5", "main", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["forced"] == []
