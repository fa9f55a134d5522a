"""`onepass rank` end to end on a tiny checkpoint: the library's order, ids that come back, and the best N."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from onepass.api import Ranking
from onepass.cli.main import main
from onepass.scorer import Scorer

DOCUMENTS = ["the sea is wide", "", "a fox in the snow, and another one"]


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path]) -> str:
    return str(checkpoint("llama3"))


@pytest.fixture(scope="module")
def right(model: str) -> Ranking:
    with Scorer.load(model, dtype="float32") as scorer:
        return scorer.rank("The fox", DOCUMENTS)


def rank(model: str, *more: str) -> int:
    return main(["rank", model, "--dtype", "float32", "--query", "The fox", *more])


def test_json_has_the_librarys_order(model: str, right: Ranking, capsys: pytest.CaptureFixture[str]) -> None:
    assert rank(model, "--documents", *DOCUMENTS, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [(one["index"], one["document"]) for one in document["results"]] == [(r.index, r.item) for r in right]
    assert [one["score"] for one in document["results"]] == [pytest.approx(r.score, abs=1e-3) for r in right]
    assert document["method"] == right.method


def test_the_table_is_best_first_and_says_by_what(
    model: str, right: Ranking, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "passages.jsonl"
    path.write_text("\n".join(json.dumps({"id": f"d{n}", "body": text}) for n, text in enumerate(DOCUMENTS)))
    assert rank(model, "--documents-file", str(path), "--text-column", "body", "--top", "2") == 0
    out, err = capsys.readouterr()
    assert err == ""
    places = re.findall(r"^ +(\d) +-\d+\.\d{4} +(d\d) ", out, re.MULTILINE)
    assert places == [("1", f"d{right[0].index}"), ("2", f"d{right[1].index}")]
    assert "1 more document · by log P(query | document)" in out


def test_another_method_is_asked_by_name(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rank(model, "--documents", *DOCUMENTS, "--method", "label", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["method"] == "label"
    assert all(0 <= one["score"] <= 1 for one in document["results"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--documents", "a"], "--query or --query-file is required"),
        (["--query", "q"], "--documents or --documents-file is required"),
        (["--query", "q", "--documents", "a", "smollm2-135m"], "onepass rank smollm2-135m --query"),
        (["--query", "-", "--documents-file", "-"], "cannot both come from stdin"),
        (["--query", "q", "--documents-file", "nothing.csv"], "cannot read nothing.csv"),
    ],
)
def test_mistakes_are_found_before_a_model_is_opened(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onepass.cli.rank.open_model_of", None)
    assert main(["rank", *arguments]) == 2
    assert message in capsys.readouterr().err
