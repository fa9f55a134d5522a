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


def test_messages_take_the_place_of_a_query(
    checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, path = str(checkpoint("qwen3")), tmp_path / "judge.json"
    messages = [{"role": "user", "content": "Is it about a fox?{item}"}]
    path.write_text(json.dumps({"messages": messages, "item_role": "user"}))
    words = ["rank", folder, "--dtype", "float32", "--messages", str(path), "--documents", *DOCUMENTS]
    assert main([*words, "--labels", " yes", " no", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["results"]
    with Scorer.load(folder, dtype="float32") as scorer:
        right = scorer.rank(messages=messages, documents=DOCUMENTS, labels=[" yes", " no"])
    assert [one["index"] for one in printed] == [ranked.index for ranked in right]
    assert [one["score"] for one in printed] == pytest.approx([ranked.score for ranked in right], abs=1e-5)
    assert main([*words, "--labels", " yes", " no"]) == 0
    out = capsys.readouterr().out
    assert "messages Is it about a fox?{item}" in out
    assert "by P(' yes') among ' yes', ' no'" in out
    assert main(words) == 2
    assert "'yes' must be one token" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"role": "critic", "content": "x"}]', "messages[0].role must be system, user, assistant; got 'critic'"),
        ("{}", "must hold a list of messages"),
        ("[]", "at least one message"),
    ],
)
def test_wrong_messages_exit_with_2(
    model: str, tmp_path: Path, content: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "judge.json").write_text(content)
    assert main(["rank", model, "--messages", str(tmp_path / "judge.json"), "--documents", "a"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--documents", "a"], "--query or --query-file or --messages is required"),
        (["--query", "q", "--messages", "f", "--documents", "a"], "give --query or --messages, not both"),
        (["--query", "q", "--documents", "a", "--labels", "yes"], "--labels is for --messages"),
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
