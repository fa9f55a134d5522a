"""`onepass run`: every row once and in order, however often a run is killed; other people's files are left alone."""

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from onepass.bulk.job_files import Checkpoint, folder_of
from onepass.bulk.row_fields import RowFields
from onepass.bulk.run import Prepared, Run, Shard, execute, prepare
from onepass.bulk.workers import Answer, Fields, LocalWorker
from onepass.errors import OnepassError, RequestError
from onepass.scorer import Scorer

MODEL = {"name": "tiny"}
SCORE = RowFields("score", set={"labels": [" yes", " no"]})


class Killed(BaseException):
    """As if the process ended here: nothing after it runs."""


@pytest.fixture(scope="module")
def scorer(checkpoint: Callable[[str], Path]) -> Iterator[Scorer]:
    options = {"dtype": "float32", "keep_programs": False, "max_batch_tokens": 256, "cache_bytes": 1 << 24}
    with Scorer.load(str(checkpoint("qwen3")), **options) as scorer:  # type: ignore[arg-type]
        yield scorer


def rows(count: int) -> list[dict[str, Any]]:
    """Every third has the query of another, every seventh is wrong."""
    out: list[dict[str, Any]] = []
    for n in range(count):
        row: dict[str, Any] = {"id": n, "query": f"Is number {n // 3} even?", "items": [f" {n}", " maybe"][: 1 + n % 2]}
        out.append(row if n % 7 != 6 else {**row, "query": ""})
    return out


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(50)), encoding="utf-8")
    return path


def prepared(run: Run) -> Prepared:
    made = prepare(run)
    assert made is not None
    return made


def run_to_end(run: Run, scorer: Scorer) -> Checkpoint:
    return execute(prepared(run), LocalWorker(scorer, run.fields.kind))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def of(source: Path, **fields: Any) -> Run:
    given = {"fields": SCORE, "model": MODEL, "window_rows": 8, "out": source.with_name("out.jsonl")}
    return Run(**{"input": source, **given, **fields})


def test_rows_come_out_in_order_with_the_library_s_scores(source: Path, scorer: Scorer) -> None:
    run = of(source)
    checkpoint = run_to_end(run, scorer)
    out = lines(run.out)
    assert [row["id"] for row in out] == list(range(50))
    assert (checkpoint.rows, checkpoint.errors) == (50, 7)
    alone = sum(
        scorer.score(row["query"], row["items"], labels=[" yes"]).usage.prompt_tokens
        for row in rows(50)
        if row["query"]
    )
    assert 0 < checkpoint.tokens < alone, "a query that rows share is counted once"
    for row, given in zip(out, rows(50), strict=True):
        if row["id"] % 7 == 6:
            assert row["error"].startswith("empty_query: ")
            assert row["scores"] is None
            continue
        wanted = scorer.score(given["query"], given["items"], labels=[" yes", " no"])
        assert row["error"] is None
        for found, scores in zip(row["scores"], wanted.scores, strict=True):
            assert found == pytest.approx(scores, abs=1e-5)
    assert not folder_of(run.out).exists()


class Dying:
    """A worker whose process ends in a chosen window, before or after the work."""

    def __init__(self, worker: LocalWorker, window: int) -> None:
        self._worker, self._left = worker, window

    def run(self, rows: Sequence[Fields]) -> list[Answer]:
        if self._left == 0:
            raise Killed
        self._left -= 1
        return self._worker.run(rows)


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(source: Path, scorer: Scorer) -> None:
    whole = of(source, out=source.with_name("whole.jsonl"))
    run_to_end(whole, scorer)
    run = of(source)
    worker = LocalWorker(scorer, "score")
    for window in (2, 0, 1):
        with pytest.raises(Killed):
            execute(prepared(run), Dying(worker, window))
    assert not run.out.exists()
    execute(prepared(run), worker)
    assert run.out.read_bytes() == whole.out.read_bytes()


@pytest.mark.parametrize("torn", ["rows", "journal", "both"])
def test_what_a_kill_left_half_written_is_written_again(source: Path, scorer: Scorer, torn: str) -> None:
    whole = of(source, out=source.with_name("whole.jsonl"))
    run_to_end(whole, scorer)
    run = of(source)
    with pytest.raises(Killed):
        execute(prepared(run), Dying(LocalWorker(scorer, "score"), 3))
    folder = folder_of(run.out)
    if torn != "journal":
        with (folder / "rows.jsonl").open("ab") as file:
            file.write(b'{"id": 24, "qu')
    if torn != "rows":
        journal = folder / "journal.jsonl"
        journal.write_bytes(journal.read_bytes()[:-7])
    run_to_end(run, scorer)
    assert run.out.read_bytes() == whole.out.read_bytes()


def test_rows_that_a_power_cut_took_are_scored_again(source: Path, scorer: Scorer) -> None:
    """The journal names more bytes than there are."""
    run = of(source)
    with pytest.raises(Killed):
        execute(prepared(run), Dying(LocalWorker(scorer, "score"), 3))
    path = folder_of(run.out) / "rows.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    run_to_end(run, scorer)
    assert [row["id"] for row in lines(run.out)] == list(range(50))


def test_a_run_that_was_killed_after_its_end_is_finished(source: Path, scorer: Scorer) -> None:
    run = of(source)
    made = prepared(run)
    kept = folder_of(run.out)
    execute(made, LocalWorker(scorer, "score"))
    before = run.out.read_bytes()
    kept.mkdir()
    job = run_job(run)
    (kept / "job.json").write_text(job, encoding="utf-8")
    (kept / "finished").touch()
    assert prepare(run) is None
    assert (run.out.read_bytes(), kept.exists()) == (before, False)


def run_job(run: Run) -> str:
    """What `prepare` writes, by a run beside it."""
    other = of(run.input, out=run.out.with_name("other.jsonl"))
    prepared(other).files.close()
    return (folder_of(other.out) / "job.json").read_text(encoding="utf-8")


def test_a_full_disk_is_an_error_that_says_how_to_go_on(source: Path, scorer: Scorer) -> None:
    run = of(source)
    made = prepared(run)
    with open("/dev/full", "ab", buffering=0) as full:  # every write fails with ENOSPC
        made.files._rows.close()
        made.files._rows = full
        with pytest.raises(OnepassError, match=r"No space left.*same command goes on"):
            execute(made, LocalWorker(scorer, "score"))
    run_to_end(run, scorer)
    assert len(lines(run.out)) == 50


@pytest.mark.parametrize(
    "change",
    [{"model": {"name": "other"}}, {"fields": RowFields("score", set={"labels": [" no", " yes"]})}, {"window_rows": 9}],
)
def test_another_run_s_folder_is_refused_and_left_as_it_is(
    source: Path, scorer: Scorer, change: dict[str, Any]
) -> None:
    run = of(source)
    with pytest.raises(Killed):
        execute(prepared(run), Dying(LocalWorker(scorer, "score"), 2))
    before = {path.name: path.read_bytes() for path in folder_of(run.out).iterdir()}
    with pytest.raises(RequestError, match=r"is another run's: \w+ was .* and is "):
        prepare(of(source, **change))
    assert {path.name: path.read_bytes() for path in folder_of(run.out).iterdir()} == before


def test_an_input_that_has_changed_is_another_run(source: Path, scorer: Scorer) -> None:
    run = of(source)
    with pytest.raises(Killed):
        execute(prepared(run), Dying(LocalWorker(scorer, "score"), 2))
    source.write_text(source.read_text(encoding="utf-8").replace("even", "evil"), encoding="utf-8")
    with pytest.raises(RequestError, match="input was"):
        prepare(run)


def test_nothing_is_overwritten(source: Path) -> None:
    run = of(source)
    run.out.write_text("precious", encoding="utf-8")
    with pytest.raises(RequestError, match="is there already"):
        prepare(run)
    assert run.out.read_text(encoding="utf-8") == "precious"
    run.out.unlink()
    folder_of(run.out).mkdir()
    (folder_of(run.out) / "mine.txt").write_text("precious", encoding="utf-8")
    with pytest.raises(RequestError, match="no run's folder"):
        prepare(run)
    assert (folder_of(run.out) / "mine.txt").read_text(encoding="utf-8") == "precious"


def test_two_processes_do_not_work_at_one_run(source: Path) -> None:
    made = prepared(of(source))
    with pytest.raises(RequestError, match="another process"):
        prepare(of(source))
    made.files.close()


def test_shards_share_the_rows(source: Path, scorer: Scorer) -> None:
    ids: list[int] = []
    for number in (1, 2, 3):
        run = of(source, out=source.with_name(f"part{number}.jsonl"), shard=Shard(number, 3))
        run_to_end(run, scorer)
        part = [row["id"] for row in lines(run.out)]
        assert part == sorted(part)
        ids += part
    assert sorted(ids) == list(range(50))


def test_a_line_that_is_no_json_is_an_error_in_its_row(tmp_path: Path, scorer: Scorer) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"id": 0, "query": "a", "items": [" b"]}\n{"id": 1, \n[1]\n', encoding="utf-8")
    run = of(source)
    assert run_to_end(run, scorer).errors == 2
    first, second, third = lines(run.out)
    assert first["error"] is None
    assert second["error"].startswith("invalid_row: not JSON")
    assert third["error"] == "invalid_row: a row must be a JSON object; got list"


@pytest.mark.parametrize(
    "wrong",
    [
        {"continuations": {"a": []}},
        {"continuations": 7},
        {"label_token_ids": 7},
        {"label_token_ids": {"a": 1}},
        {"label_token_ids": [[1], 2]},
        {"labels": 7},
        {"items": 7},
        {"items": [7, None]},
        {"query": {"a": 1}},
        {"temperature": "x"},
        {"mode": []},
        {"messages": 7},
    ],
)
def test_a_row_with_a_field_of_the_wrong_type_fails_alone(
    tmp_path: Path, scorer: Scorer, wrong: dict[str, Any]
) -> None:
    source = tmp_path / "in.jsonl"
    row = {"query": "a", "items": [" b"], "labels": [" yes", " no"]}
    other = {**row, **wrong}
    if not wrong.keys().isdisjoint(("continuations", "label_token_ids")):
        del other["labels"]
    source.write_text("".join(json.dumps(one) + "\n" for one in (row, other, row)), encoding="utf-8")
    run = of(source, fields=RowFields("score"))
    assert run_to_end(run, scorer).errors == 1
    first, failed, last = lines(run.out)
    assert re.match(r"[a-z_]+: ", failed["error"])
    assert failed["scores"] is None
    assert first["error"] is last["error"] is None


def test_csv_in_and_out_with_a_template(tmp_path: Path, scorer: Scorer) -> None:
    source = tmp_path / "in.csv"
    source.write_text('id,question,answer\nx,"Is it, or\nnot?", yes\ny,Why?,[" a"]\nz,short\n', encoding="utf-8")
    fields = RowFields("score", {"items": "answer"}, {"query": "Q: {question} {{x}}"}, {"labels": [" yes", " no"]})
    run = of(source, out=tmp_path / "out.csv", fields=fields, keep=("id",))
    assert run_to_end(run, scorer).rows == 3
    with run.out.open(encoding="utf-8", newline="") as file:
        first, second, third = csv.DictReader(file)
    assert list(first) == ["id", "scores", "label_mass", "logprobs", "error"]
    wanted = scorer.score("Q: Is it, or\nnot? {x}", [" yes"], labels=[" yes", " no"])
    assert json.loads(first["scores"])[0] == pytest.approx(wanted.scores[0], abs=1e-5)
    assert (second["id"], second["error"]) == ("y", "")
    assert third["error"] == "invalid_row: the row has 2 columns; the header has 3"


def test_ranking_rows(tmp_path: Path, scorer: Scorer) -> None:
    source = tmp_path / "in.jsonl"
    row = {"question": "the capital of Italy", "passages": ["Rome is the capital.", "Water boils."]}
    source.write_text(json.dumps(row) + "\n", encoding="utf-8")
    run = of(source, fields=RowFields("rank", {"query": "question", "documents": "passages"}))
    run_to_end(run, scorer)
    (out,) = lines(run.out)
    wanted = scorer.rank(row["question"], row["passages"])  # type: ignore[arg-type]
    assert [item["index"] for item in out["ranking"]] == [item.index for item in wanted]
    assert out["method"] == wanted.method


def test_deciding_rows(tmp_path: Path, scorer: Scorer) -> None:
    source = tmp_path / "in.jsonl"
    rows = [{"state": "My card was charged twice."}, {"state": "Hello"}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    questions = {"urgent": {"type": "predicate", "instructions": "Is this urgent?"}}
    run = of(source, fields=RowFields("decide", set={"questions": questions}))
    assert run_to_end(run, scorer).errors == 0
    for row, given in zip(lines(run.out), rows, strict=True):
        wanted = scorer.decide(given["state"], questions).answers[0][0]
        assert row["answers"][0]["probability"] == pytest.approx(wanted.probability, abs=1e-5)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"questions": [{"type": ["noul"]}]}, "invalid_questions"),
        ({"questions": 7}, "invalid_questions"),
        ({"candidates": "abc"}, "invalid_candidates"),
        ({"candidates": 7}, "invalid_candidates"),
        ({"permutations": "2"}, "invalid_permutations"),
        ({"state": 7}, "invalid_state"),
    ],
)
def test_a_wrong_deciding_row_fails_alone(tmp_path: Path, scorer: Scorer, wrong: dict[str, Any], code: str) -> None:
    row = {"state": "Hello", "questions": [{"type": "noul"}], "candidates": ["a"], "permutations": 1}
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(one) + "\n" for one in (row, {**row, **wrong}, row)), encoding="utf-8")
    run = of(source, fields=RowFields("decide"))
    assert run_to_end(run, scorer).errors == 1
    first, failed, last = lines(run.out)
    assert failed["error"].startswith(f"{code}: ")
    assert first["answers"][0][0]["probability"] == pytest.approx(last["answers"][0][0]["probability"], abs=1e-5)


def test_parquet_in_and_out(tmp_path: Path, source: Path, scorer: Scorer) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    whole = of(source)
    run_to_end(whole, scorer)
    path = tmp_path / "in.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows(50)), path, row_group_size=11)
    run = of(path, out=tmp_path / "out.parquet")
    with pytest.raises(Killed):
        execute(prepared(run), Dying(LocalWorker(scorer, "score"), 3))
    run_to_end(run, scorer)
    table = parquet.read_table(run.out)
    assert table.schema.field("scores").type == pyarrow.list_(pyarrow.list_(pyarrow.float64()))
    assert table.schema.field("id").type == pyarrow.int64()
    assert table.column("scores").to_pylist() == [row["scores"] for row in lines(whole.out)]
    half = tmp_path / "half.parquet"
    half.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(RequestError, match="no whole Parquet file"):
        prepare(of(half, out=tmp_path / "other.parquet"))
    assert not folder_of(tmp_path / "other.parquet").exists()


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        (RowFields("score", {"query": "nope"}), "no column 'nope'; the input has id, query, items"),
        (RowFields("score", text={"query": "{nope}"}), "no column 'nope'"),
        (RowFields("score", set={"nope": 1}), "score has no field 'nope'"),
        (RowFields("decide"), "decide needs state: name the column with --map state=COLUMN"),
    ],
)
def test_wrong_names_are_told_before_anything_is_made(source: Path, fields: RowFields, wanted: str) -> None:
    with pytest.raises(RequestError, match=wanted):
        prepare(of(source, fields=fields))
    assert not folder_of(source.with_name("out.jsonl")).exists()
