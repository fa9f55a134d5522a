"""`onepass score` end to end on a tiny checkpoint: the same numbers as the library, on stdout and nowhere else."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onepass.cli.main import main
from onepass.scorer import Scorer

Checkpoint = Callable[[str], Path]
ITEMS = [" yes", "", " a longer item about the sea"]
LABELS = [" yes", " no"]


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> str:
    return str(checkpoint("llama3"))


@pytest.fixture(scope="module")
def scorer(model: str) -> Scorer:
    return Scorer.load(model, dtype="float32")


@pytest.fixture(scope="module")
def expected(scorer: Scorer) -> list[list[float]]:
    return scorer.score(query="The fox", items=ITEMS, labels=LABELS).scores


def options(model: str, *more: str) -> list[str]:
    return ["score", model, "--dtype", "float32", "--query", "The fox", *more]


def same(one: list[list[float]], other: list[list[float]]) -> bool:
    return [pytest.approx(row, abs=1e-6) for row in other] == one


def test_json_is_one_document_with_the_librarys_scores_in_input_order(model: str, expected: list[list[float]]) -> None:
    command = [
        sys.executable,
        "-m",
        "onepass.cli.main",
        *options(model, "--items", *ITEMS),
        "--labels",
        *LABELS,
        "--json",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    document = json.loads(answer.stdout)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert same(document["scores"], expected)
    assert document["labels"] == [LABELS] * 3
    assert document["usage"]["prompt_tokens"] > 0
    assert "ranking" not in document


def test_the_table_is_best_first_on_stdout(
    model: str, expected: list[list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options(model, "--items", *ITEMS), "--labels", *LABELS]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "query  The fox" in out
    shown = [float(line.split()[-3]) for line in out.splitlines() if line.split()[:1] in (["1"], ["2"], ["3"])]
    assert shown == [pytest.approx(row[0], abs=1e-4) for row in sorted(expected, reverse=True)]


def test_items_from_a_file_and_a_query_from_stdin_mean_the_same(
    model: str, expected: list[list[float]], tmp_path: Path
) -> None:
    (tmp_path / "items.jsonl").write_text("\n".join(json.dumps({"text": item}) for item in ITEMS))
    command = [sys.executable, "-m", "onepass.cli.main", "score", model, "--dtype", "float32", "--query", "-"]
    command += ["--items-file", str(tmp_path / "items.jsonl"), "--labels", *LABELS, "--json"]
    answer = subprocess.run(command, input="The fox\n", capture_output=True, text=True, check=True)
    assert same(json.loads(answer.stdout)["scores"], expected)


def test_requests_give_one_document_with_a_result_each(
    model: str, expected: list[list[float]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = [
        {"query": "The fox", "items": ITEMS, "labels": LABELS},
        {"query": "The fox", "items": ITEMS[:1], "labels": LABELS, "apply_softmax": True},
    ]
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(json.dumps(request) for request in requests))
    assert main(["score", model, "--dtype", "float32", "--requests", str(path), "--json"]) == 0
    whole, softmax = json.loads(capsys.readouterr().out)["results"]
    assert same(whole["scores"], expected)
    assert sum(softmax["scores"][0]) == pytest.approx(1.0)


def test_options_of_scoring_reach_the_engine(model: str, scorer: Scorer, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = {"apply_softmax": True, "temperature": 2.0, "item_first": True, "delimiter_token_id": 5, "mode": "serial"}
    more = ["--apply-softmax", "--temperature", "2", "--item-first", "--delimiter-token-id", "5", "--mode", "serial"]
    assert main([*options(model, "--items", *ITEMS), "--label-token-ids", "7", "8", *more, "--json", "--rank"]) == 0
    document = json.loads(capsys.readouterr().out)
    result = scorer.score(query="The fox", items=ITEMS, label_token_ids=[7, 8], **chosen)
    assert same(document["scores"], result.scores)
    assert (document["mode"], document["label_token_ids"]) == ("serial", [[7, 8]] * 3)
    assert len(document["ranking"]) == 3


def test_top_in_json_is_a_ranking_beside_all_the_scores(
    model: str, expected: list[list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options(model, "--items", *ITEMS), "--labels", *LABELS, "--json", "--top", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert same(document["scores"], expected)
    order = sorted(range(3), key=lambda i: -expected[i][0])[:2]
    assert [(place["index"], place["item"]) for place in document["ranking"]] == [(i, ITEMS[i]) for i in order]


def test_a_label_of_several_tokens_is_an_error_that_names_them(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*options(model, "--items", "a"), "--labels", " yes", " zebra crossing"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("onepass: label ' zebra crossing' must be one token; it becomes ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--items", "a", "--labels", " b"], "--query or --query-file is required"),
        (["--query", "q", "--labels", " b"], "--items or --items-file is required"),
        (["--query", "q", "--items", "a"], "--labels or --label-token-ids is required"),
        (
            ["--query", "q", "--query-file", "f", "--items", "a", "--labels", " b"],
            "give --query or --query-file, not both",
        ),
        (
            ["--query", "q", "--items", "a", "--items-file", "f", "--labels", " b"],
            "give --items or --items-file, not both",
        ),
        (
            ["--query", "q", "--items", "a", "--labels", " b", "--label-token-ids", "0"],
            "give --labels or --label-token-ids, not both",
        ),
        (["--query", "-", "--items-file", "-", "--labels", " b"], "query and items cannot both come from stdin"),
        (["--requests", "f", "--query", "q"], "--query cannot be added"),
        (["--requests", "f", "--temperature", "2", "--mode", "serial"], "--temperature, --mode cannot be added"),
        (["--requests", "f", "--delimiter-token-id", "0"], "--delimiter-token-id cannot be added"),
        (["--query-file", "nothing.txt", "--items", "a", "--labels", " b"], "cannot read nothing.txt"),
        (
            ["--query", "q", "--items", "a", "smollm2-135m", "--labels", " b"],
            "'smollm2-135m' was read as the last of --items",
        ),
        (["--query", "q", "--items", "a", "--labels", " b", "random:qwen3-0.6b"], "was read as the last of --labels"),
    ],
)
def test_wrong_input_is_refused_before_a_model_is_loaded(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onepass.cli.score._score", None)
    assert main(["score", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.startswith("onepass: "), message in err) == ("", True, True), err


def test_a_model_after_label_ids_is_told_to_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["score", "--query", "q", "--items", "a", "--label-token-ids", "1", "smollm2-135m"])
    assert stop.value.code == 2
    assert "MODEL comes first: onepass score smollm2-135m" in capsys.readouterr().err


def test_a_model_named_among_the_items_is_an_item_when_the_model_is_given(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options(model, "--items", "smollm2-135m"), "--labels", *LABELS, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["scores"]) == 1


def test_the_default_model_is_the_librarys() -> None:
    from onepass import scorer
    from onepass.cli.parser import DEFAULT_MODEL

    assert DEFAULT_MODEL == scorer.DEFAULT_MODEL
