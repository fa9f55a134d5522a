"""`onepass score --requests`: results in order, a window in flight, ids, and mistakes that name their line."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onepass.cli import bulk
from onepass.cli.inputs.requests import RequestRow, request_rows
from onepass.cli.main import main
from onepass.loading.tensor_reader import silent
from onepass.scorer import Scorer

LABELS = [" yes", " no"]


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path]) -> str:
    return str(checkpoint("llama3"))


@pytest.fixture(scope="module")
def scorer(model: str) -> Iterator[Scorer]:
    with Scorer.load(model, dtype="float32") as loaded:
        yield loaded


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return str(path)


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"id": f"r{n}", "query": f"Number {n}", "items": [" a", " b"], "labels": LABELS} for n in range(count)]


def test_results_are_written_in_order_with_their_ids(model: str, scorer: Scorer, tmp_path: Path) -> None:
    rows = rows_of(9)
    rows[4] = {"query": "The fox", "items": [" a", " b"], "continuations": [[" on the mat", " x"], [" y"]]}
    out = tmp_path / "out.jsonl"
    path = write(tmp_path / "rows.jsonl", rows)
    assert main(["score", model, "--dtype", "float32", "--requests", path, "--out", str(out), "--quiet"]) == 0
    documents = [json.loads(line) for line in out.read_text().splitlines()]
    assert [document.get("id") for document in documents] == [row.get("id") for row in rows]
    right = scorer.score_many([row.request for row in request_rows(path)])
    for document, wanted in zip(documents, right, strict=True):
        assert document["scores"] == [pytest.approx(row, abs=1e-6) for row in wanted.scores]
    choices = documents[4]["continuations"]
    assert [[one["text"] for one in row] for row in choices] == [[" on the mat", " x"], [" y"]]
    assert [sum(one["probability"] for one in row) for row in choices] == [pytest.approx(1.0)] * 2


def test_no_more_than_a_window_is_in_flight(scorer: Scorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "IN_FLIGHT", 4)
    read = 0

    def counted() -> Iterator[RequestRow]:
        nonlocal read
        for row in request_rows(write(tmp_path / "rows.jsonl", rows_of(20))):
            read += 1
            yield row

    ahead = []
    for done, (row, _) in enumerate(bulk.scored(scorer, counted(), silent, 20)):
        assert row.id == f"r{done}"
        ahead.append(read - done)
    assert (max(ahead), read) == (4, 20)


def test_what_is_not_waited_for_is_cancelled(scorer: Scorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    futures = []
    submit = scorer.submit

    def watched(request: Any) -> Any:
        futures.append(submit(request))
        return futures[-1]

    monkeypatch.setattr(scorer, "submit", watched)
    rows = [{**row, "items": [" a"] * 400, "mode": "serial"} for row in rows_of(6)]
    results = bulk.scored(scorer, request_rows(write(tmp_path / "rows.jsonl", rows)), silent, 6)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert [future.done() for future in futures] == [True] * 6
    assert any(future.cancelled() for future in futures)


def test_a_mistake_in_a_later_row_names_its_line_and_keeps_what_is_done(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "CHECKED_ROWS", 2)
    monkeypatch.setattr(bulk, "IN_FLIGHT", 1)
    rows = rows_of(5)
    rows[3]["labels"] = [" zebra crossing"]
    out = tmp_path / "out.jsonl"
    path = write(tmp_path / "rows.jsonl", rows)
    assert main(["score", model, "--dtype", "float32", "--requests", path, "--out", str(out)]) == 2
    err = capsys.readouterr().err
    assert f"onepass: 3 of 5 rows are in {out}" in err
    assert "rows.jsonl, line 4: label ' zebra crossing' must be one token" in err
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == ["r0", "r1", "r2"]


@pytest.mark.parametrize(
    ("line", "message"),
    [('{"query": "q", "itemz": []}', "line 3: no such field: itemz"), ("{", "line 3: not JSON")],
)
def test_a_row_of_the_wrong_form_is_found_before_anything_runs(
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    message: str,
) -> None:
    monkeypatch.setattr(bulk, "CHECKED_ROWS", 1)
    monkeypatch.setattr(bulk, "open_model_of", None)
    path = Path(write(tmp_path / "rows.jsonl", rows_of(2)))
    path.write_text(path.read_text() + line)
    assert main(["score", model, "--requests", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_an_error(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "open_model_of", None)
    path = write(tmp_path / "rows.jsonl", rows_of(1))
    assert main(["score", model, "--requests", path, "--out", str(tmp_path / "no" / "out.jsonl")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_rows_whose_labels_hold_no_probability_are_counted(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights are random: two labels of several hundred hold next to nothing after these queries."""
    path = write(tmp_path / "rows.jsonl", rows_of(3))
    assert main(["score", model, "--dtype", "float32", "--requests", path, "--json"]) == 0
    out, err = capsys.readouterr()
    low = [n for n, row in enumerate(json.loads(out)["results"]) if sum(mass < 0.01 for mass in row["label_mass"]) > 1]
    assert low, "else this test shows nothing"
    assert err.startswith(f"onepass: {path}, line {low[0] + 1}: the labels hold ")
    assert (f"(the first of {len(low)} such rows among 3)" in err) == (len(low) > 1)
    assert err.count("\n") == 1


def test_tables_say_which_row_they_are_of(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", model, "--requests", write(tmp_path / "rows.jsonl", rows_of(2))]) == 0
    out = capsys.readouterr().out
    assert out.index("id  r0") < out.index("Number 0") < out.index("id  r1") < out.index("Number 1")
