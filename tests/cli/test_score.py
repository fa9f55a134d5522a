"""`onepass score` end to end on a tiny checkpoint: the same numbers as the library, on stdout and nowhere else."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

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
    assert answer.returncode == 0
    assert answer.stderr.startswith("onepass: the labels hold "), "and nothing else: weights are random"
    assert answer.stderr.count("\n") == 1
    assert same(document["scores"], expected)
    assert document["labels"] == [LABELS] * 3
    assert document["usage"]["prompt_tokens"] > 0
    assert "ranking" not in document


def test_the_table_is_in_input_order_on_stdout_unless_it_is_sorted(
    model: str, expected: list[list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    first = [row[0] for row in expected]
    assert shown_scores(model, capsys) == [pytest.approx(score, abs=1e-4) for score in first]
    by_no = sorted(expected, key=lambda row: -row[1])
    assert shown_scores(model, capsys, "--sort", " no") == [pytest.approx(row[0], abs=1e-4) for row in by_no]


def shown_scores(model: str, capsys: pytest.CaptureFixture[str], *more: str) -> list[float]:
    """The column of the first label, as the table has it."""
    assert main([*options(model, "--items", *ITEMS), "--labels", *LABELS, *more]) == 0
    out = capsys.readouterr().out
    assert ('sorted by " no"' in out) == bool(more)
    rows = [re.findall(r"\d\.\d{4}|\d\.\de-\d\d", line) for line in out.splitlines()]
    return [float(row[0]) for row in rows if len(row) == 3]


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
    assert "(--continuations in the command)" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--items", "a", "--labels", " b"], "--query or --query-file or --messages is required, or whole --requests"),
        (["--query", "q", "--labels", " b"], "--items or --items-file is required"),
        (["--query", "q", "--items", "a"], "--labels or --label-token-ids is required (or --continuations"),
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
        (["--query", "", "--items", "a", "--labels", " b"], "the query must not be empty"),
        (["--query", "q", "--items-file", "EMPTY", "--labels", " b"], "EMPTY holds no items"),
        (["--query", "q", "--items-file", "ROWS.csv", "--labels", " b"], "has the columns a, b"),
        (
            ["--query", "q", "--items-file", "ROWS.csv", "--labels", " b", "--text-column", "c"],
            "no column 'c'; its columns are a, b",
        ),
        (["--query", "q", "--items", "a", "--labels", " b", "--sort", " c"], "--sort takes one of ' b'; got ' c'"),
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
def test_wrong_input_is_refused_before_a_model_is_opened(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("onepass.cli.score.open_model_of", None)
    (tmp_path / "EMPTY").write_text("")
    (tmp_path / "ROWS.csv").write_text("a,b\n1,2\n")
    monkeypatch.chdir(tmp_path)
    assert main(["score", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.startswith("onepass: "), message in err) == ("", True, True), err


BEFORE_LOADING = """
import sys
from onepass.cli.main import main

status = main(sys.argv[1:])
heavy = [name for name in ("jax", "onepass.scorer") if name in sys.modules]
assert not heavy, heavy
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score", "--query", "q", "--items", "a", "--labels", " yes", " yes"], "' yes' is given twice"),
        (["score", "--query", "q", "--items", "a", "--labels", " zebra crossing"], "--continuations"),
        (["score", "--query", "q", "--items", "a", "--labels", " yes", "--temperature", "2"], "needs apply_softmax"),
        (["score", "--requests", "ROWS"], "ROWS, line 1: continuations must have one list of texts per item"),
        (["rank", "--query", "word " * 3000, "--documents", "a"], "the limit is"),
    ],
)
def test_what_the_tokenizer_can_tell_is_told_without_jax(
    model: str, arguments: list[str], message: str, tmp_path: Path
) -> None:
    row = {"query": "q", "items": ["a", "b"], "continuations": [[" a"]]}
    (tmp_path / "ROWS").write_text(json.dumps(row))
    command = [sys.executable, "-c", BEFORE_LOADING, arguments[0], model, *arguments[1:]]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (2, ""), answer.stderr
    assert message in answer.stderr
    assert answer.stderr.count("\n") == (2 if "ROWS" in arguments else 1)


def test_continuations_have_texts_and_shares(model: str, scorer: Scorer, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [" zebra crossing", " no"]
    assert main([*options(model, "--items", *ITEMS), "--continuations", *texts, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    wanted = scorer.score("The fox", ITEMS, continuations=texts).continuations
    assert wanted is not None
    for row, right in zip(document["continuations"], wanted, strict=True):
        assert [entry["text"] for entry in row] == texts
        assert [entry["logprob"] for entry in row] == [pytest.approx(one.logprob, abs=1e-3) for one in right]
        assert sum(entry["probability"] for entry in row) == pytest.approx(1.0)
    assert main([*options(model, "--items", *ITEMS), "--continuations", *texts]) == 0
    assert '" zebra crossing"' in capsys.readouterr().out


def test_messages_go_through_the_models_chat_template(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat, messages = str(checkpoint("qwen3")), [{"role": "user", "content": "Is it {item}? Say yes or no."}]
    (tmp_path / "chat.json").write_text(json.dumps(messages))
    command = [
        "score",
        chat,
        "--dtype",
        "float32",
        "--messages",
        str(tmp_path / "chat.json"),
        "--items",
        "a",
        "the sea",
    ]
    assert main([*command, "--label-token-ids", "7", "8", "--json"]) == 0
    with Scorer.load(chat, dtype="float32") as scorer:
        right = scorer.score(messages=messages, items=["a", "the sea"], label_token_ids=[7, 8])
    assert same(json.loads(capsys.readouterr().out)["scores"], right.scores)


def test_scoring_reports_items_as_they_are_done(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[tuple[str, int, int]] = []

    @contextmanager
    def recorded(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
        yield lambda *report: reported.append(report)

    monkeypatch.setattr("onepass.cli.scoring.progress_bars", recorded)
    assert main([*options(model, "--items", *ITEMS), "--labels", *LABELS, "--mode", "serial"]) == 0
    assert "load" in [stage for stage, _, _ in reported]
    items = [report[1:] for report in reported if report[0] == "items"]
    assert items[-1] == (3, 3)
    assert items == sorted(items)
    assert len(items) > 1, "serial mode computes one item after another"


def test_ids_and_best_labels_come_back(
    model: str, expected: list[list[float]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "items.csv"
    path.write_text("sku,body\n" + "\n".join(f'x{n},"{item}"' for n, item in enumerate(ITEMS)) + "\n")
    files = ["--items-file", str(path), "--text-column", "body", "--id-column", "sku"]
    assert main([*options(model, *files), "--labels", *LABELS, "--json", "--sort", " no", "--top", "1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ids"] == ["x0", "x1", "x2"]
    assert document["best"] == [LABELS[row.index(max(row))] for row in expected]
    best = max(range(3), key=lambda i: expected[i][1])
    assert [(entry["id"], entry["index"]) for entry in document["ranking"]] == [(f"x{best}", best)]


def test_labels_without_probability_are_warned_of(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 300 tokens, the one that the model gives the least."""
    assert main([*options(model, "--items", "a"), "--label-token-ids", *map(str, range(300)), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"][0]
    least = min(range(300), key=scores.__getitem__)
    assert scores[least] < 0.01
    assert main([*options(model, "--items", "a"), "--label-token-ids", str(least)]) == 0
    out, err = capsys.readouterr()
    assert "label mass" in out
    assert err.startswith("onepass: the labels hold ")


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


def test_a_model_with_classes_needs_no_labels(
    checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(checkpoint("qwen3-untied"), tmp_path / "classifier"))
    tensors = load_file(folder / "model.safetensors")
    tensors["score.weight"] = tensors.pop("lm_head.weight")[:3].copy()
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    changes = {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "a", "1": "b", "2": "c"}}
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    words = ["score", str(folder), "--dtype", "float32", "--query", "Is it?", "--items", " the fox", " Paris"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["labels"] == [["a", "b", "c"]] * 2
    assert [sum(row) for row in document["scores"]] == pytest.approx([1.0, 1.0], abs=1e-5)
    assert main([*words, "--sort", "b"]) == 2
    assert "--sort takes one of --labels" in capsys.readouterr().err
    assert main(["score", str(checkpoint("qwen3-untied")), "--query", "Is it?", "--items", "x"]) == 2
    assert "--labels or --label-token-ids is required" in capsys.readouterr().err
