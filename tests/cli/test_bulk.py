"""`onepass score --requests`: results in order, a window in flight, ids, and wrong rows that fail alone."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onepass.cli import bulk
from onepass.cli.inputs.requests import FailedRow, RequestRow, read_requests, request_rows
from onepass.cli.main import main
from onepass.errors import EngineUnavailable, RequestError
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
    right = scorer.score_many(read_requests(path))
    for document, wanted in zip(documents, right, strict=True):
        assert document["scores"] == [pytest.approx(row, abs=1e-6) for row in wanted.scores]
    choices = documents[4]["continuations"]
    assert [[one["text"] for one in row] for row in choices] == [[" on the mat", " x"], [" y"]]
    assert [sum(one["probability"] for one in row) for row in choices] == [pytest.approx(1.0)] * 2


def test_no_more_than_a_window_is_in_flight(scorer: Scorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "IN_FLIGHT", 4)
    read = 0

    def counted() -> Iterator[RequestRow | FailedRow]:
        nonlocal read
        for row in request_rows(write(tmp_path / "rows.jsonl", rows_of(20))):
            read += 1
            yield row

    ahead = []
    for done, entry in enumerate(bulk.scored(scorer, counted(), silent, 20)):
        assert isinstance(entry, tuple)
        assert entry[0].id == f"r{done}"
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


BAD_ROWS = [
    ("{", "not JSON: Expecting property name enclosed in double quotes (column 2)", "invalid_json"),
    (b'{"query": "\xff"}', "must be UTF-8; ", "invalid_text"),
    ("[" * 100_000, "not JSON: ", "invalid_json"),
    ("[]", "a request must be an object; got list", "invalid_request"),
    ('{"id": "bad", "query": "q", "itemz": []}', "no such field: itemz; the fields are ", "invalid_request"),
    ('{"id": "bad", "query": "q", "items": ["a"]}', "labels or label_token_ids ", "missing_labels"),
    ('{"id": "bad", "query": 5, "items": ["a"], "labels": [" yes"]}', "query must be ", "invalid_query_type"),
    ('{"id": NaN, "query": "q", "items": ["a"], "labels": [" yes"]}', "id must be JSON", "invalid_id"),
    (
        '{"id": "bad", "query": "q", "items": ["a"], "labels": [" zebra crossing"]}',
        "label ' zebra crossing' must be one token",
        "label_not_single_token",
    ),
]  # fmt: skip
BAD_NAMES = [f"{number}-{code}" for number, (_, _, code) in enumerate(BAD_ROWS)]


def as_bytes(line: str | bytes) -> bytes:
    return line if isinstance(line, bytes) else line.encode()


@pytest.mark.parametrize("place", [0, 2, 3])
@pytest.mark.parametrize(("line", "message", "code"), BAD_ROWS, ids=BAD_NAMES)
def test_a_row_that_is_wrong_has_its_error_in_its_place_and_the_others_are_scored(
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    line: str | bytes,
    message: str,
    code: str,
    place: int,
) -> None:
    rows = [json.dumps(row).encode() for row in rows_of(3)]
    rows.insert(place, as_bytes(line))
    path, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    path.write_bytes(b"\n".join(rows))
    assert main(["score", model, "--dtype", "float32", "--requests", str(path), "--out", str(out)]) == 2
    documents = [json.loads(text) for text in out.read_text().splitlines()]
    failed = documents.pop(place)
    assert failed.pop("line") == place + 1
    assert failed.pop("error").startswith(f"{code}: {message}")
    assert failed == ({"id": "bad"} if b"bad" in as_bytes(line) else {})
    assert [document["id"] for document in documents] == ["r0", "r1", "r2"]
    assert all(len(document["scores"]) == 2 and "error" not in document for document in documents)
    err = capsys.readouterr().err
    assert f"onepass: {path}, line {place + 1}: {message}" in err
    assert f"onepass: wrote 4 rows to {out}, 1 with an error" in err


def test_rows_that_are_all_right_have_no_error_and_status_0(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same rows as above without the wrong one: what the test above shows is the wrong row's doing."""
    out = tmp_path / "out.jsonl"
    path = write(tmp_path / "rows.jsonl", rows_of(3))
    assert main(["score", model, "--dtype", "float32", "--requests", path, "--out", str(out)]) == 0
    assert "error" not in out.read_text()
    assert "error" not in capsys.readouterr().err


@pytest.mark.parametrize("before", [None, "kept\n"])
@pytest.mark.parametrize(("line", "message", "code"), BAD_ROWS, ids=BAD_NAMES)
def test_a_file_without_one_right_row_is_refused_before_weights_are_loaded_and_out_is_not_touched(
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    line: str | bytes,
    message: str,
    code: str,
    before: str | None,
) -> None:
    monkeypatch.setattr(bulk, "load_scorer", None)
    path, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    path.write_bytes(as_bytes(line) + b"\n\n" + as_bytes(line))
    if before is not None:
        out.write_text(before)
    assert main(["score", model, "--requests", str(path), "--out", str(out)]) == 2
    err = capsys.readouterr().err
    assert f"onepass: {path}, line 1: {message}" in err
    assert f"onepass: {path}, line 3: {message}" in err
    assert err.endswith(f"onepass: no row of {path} could be scored\n")
    assert (out.read_text() if out.exists() else None) == before


def test_rows_that_only_the_engine_refuses_leave_out_alone(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(scorer: Scorer, request: Any) -> Any:
        raise RequestError("does_not_fit", "too large")

    monkeypatch.setattr(Scorer, "submit", refuse)
    out = tmp_path / "out.jsonl"
    path = write(tmp_path / "rows.jsonl", rows_of(2))
    assert main(["score", model, "--dtype", "float32", "--requests", path, "--out", str(out)]) == 2
    assert f"onepass: {path}, line 2: too large\nonepass: no row of" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("arguments", [["--requests", "missing.jsonl"], ["--requests", "-", "--query", "q"]])
def test_what_is_refused_leaves_no_empty_out(arguments: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert main(["score", *arguments, "--out", str(out)]) == 2
    assert not out.exists()


def test_out_may_not_be_the_file_of_the_requests(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "rows.jsonl", rows_of(1))
    before = Path(path).read_text()
    assert main(["score", model, "--requests", path, "--out", path]) == 2
    assert "--out would overwrite" in capsys.readouterr().err
    assert Path(path).read_text() == before


def test_many_wrong_rows_are_counted_and_the_first_shown(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(write(tmp_path / "rows.jsonl", rows_of(1)))
    path.write_text(path.read_text() + "{\n" * 13)
    assert main(["score", model, "--dtype", "float32", "--requests", str(path), "--json"]) == 2
    out, err = capsys.readouterr()
    assert [result.get("line") for result in json.loads(out)["results"]] == [None, *range(2, 15)]
    assert err.count("not JSON") == bulk.SHOWN_FAILURES
    assert f"onepass: 3 more rows of {path} could not be scored" in err


def test_a_wrong_row_of_stdin_fails_alone(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ["{", json.dumps(rows_of(1)[0])]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(rows).encode())))
    assert main(["score", model, "--dtype", "float32", "--requests", "-"]) == 2
    out, err = capsys.readouterr()
    assert "id  r0" in out
    assert "onepass: stdin, line 1: not JSON" in err


def test_what_is_done_is_kept_where_the_engine_fails(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "IN_FLIGHT", 1)
    submit = Scorer.submit

    def fails_at_last(scorer: Scorer, request: Any) -> Any:
        if request.query == "Number 3":
            raise EngineUnavailable("the engine died")
        return submit(scorer, request)

    monkeypatch.setattr(Scorer, "submit", fails_at_last)
    out = tmp_path / "out.jsonl"
    path = write(tmp_path / "rows.jsonl", rows_of(5))
    assert main(["score", model, "--dtype", "float32", "--requests", path, "--out", str(out)]) == 2
    err = capsys.readouterr().err
    assert f"onepass: 3 of 5 rows are in {out}" in err
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == ["r0", "r1", "r2"]


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
