"""Judgments and runs in TREC's and BEIR's columns, and errors that name the line."""

from pathlib import Path
from typing import Any

import pytest

from onepass.errors import RequestError
from onepass.evaluate.trec_files import ScoredDocument, check_ids, ranked, read_qrels, read_run, run_lines


def write(folder: Path, text: str) -> Path:
    path = folder / "file"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "1 0 d1 2\n1 0 d2 0\n\n2 0 d1 1\n",
        "query-id\tcorpus-id\tscore\n1\td1\t2\n1\td2\t0\n2\td1\t1\n",
        "1\t0\td1\t2\r\n1\t0\td2\t0\r\n2\t0\td1\t1",
    ],
    ids=["TREC", "BEIR", "tabs and CRLF"],
)
def test_qrels_are_read_in_either_layout(tmp_path: Path, text: str) -> None:
    assert read_qrels(write(tmp_path, text)) == {"1": {"d1": 2, "d2": 0}, "2": {"d1": 1}}


def test_beir_ids_may_hold_spaces(tmp_path: Path) -> None:
    assert read_qrels(write(tmp_path, "q 1\td 1\t1\n")) == {"q 1": {"d 1": 1}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 0 d1 1\n1 0 d2\n", "line 2: must have a whole number as its grade"),
        ("1 0 d1 1 x\n", "line 1: must have query 0 document grade"),
        ("1 0 d1 high\n", "line 1: must have a whole number"),
        ("1 0 d1 1\n1 0 d1 2\n", "line 2: 'd1' is judged twice for '1'"),
        ("\n", "holds no judgments"),
    ],
)
def test_a_broken_line_of_qrels_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_qrels(write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 Q0 d1 1 2.5\n", "line 1: must have query Q0 document rank score tag"),
        ("1 Q0 d1 1 nan t\n", "line 1: must have a number as its score"),
        ("1 Q0 d1 1 2 t\n1 Q0 d1 2 1 t\n", "line 2: 'd1' occurs twice for '1'"),
        ("", "holds no run"),
    ],
)
def test_a_broken_line_of_a_run_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_run(write(tmp_path, text))


def test_a_run_is_sorted_by_score_then_id_whatever_its_ranks_say(tmp_path: Path) -> None:
    run = read_run(write(tmp_path, "1 Q0 a 1 0.5 t\n1 Q0 b 2 0.5 t\n1 Q0 c 3 9 t\n2 Q0 a 1 1 t\n"))
    assert [document.id for document in run["1"]] == ["c", "b", "a"]
    assert run["2"] == [ScoredDocument("a", 1.0)]


def test_a_written_run_is_read_back_the_same_by_us_and_by_trec_eval(trec_eval: Any, tmp_path: Path) -> None:
    """Scores that differ in the last bit of single precision stay apart."""
    scores = {"a": 0.1, "b": 0.1 + 1e-8, "c": 0.10000002, "d": -1234567.8, "e": 1e-20}
    path = write(tmp_path, run_lines("q", ranked(scores), "tag"))
    assert read_run(path)["q"] == ranked(scores)
    with path.open() as file:
        theirs = trec_eval.parse_run(file)["q"]
    assert ranked(theirs) == ranked(scores)


def test_ids_with_white_space_do_not_fit_a_run() -> None:
    check_ids(iter(["a", "ü-1"]))
    with pytest.raises(RequestError, match="cannot hold ids with white space; got 'd 1'"):
        check_ids(iter(["a", "d 1"]))
