"""`onepass evaluate` end to end on a tiny checkpoint: metrics that trec_eval confirms, files, comparisons, mistakes."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from bulk.served import served
from evaluate.small_collection import DOCUMENTS, QRELS, QUERIES, write_beir, write_run
from onepass.cli.evaluate.options import METRICS
from onepass.cli.main import main
from onepass.evaluate.metrics import DEFAULT_METRICS, Metric
from onepass.evaluate.trec_files import read_run
from onepass.scorer import Scorer

OTHER_WORDS = """
method = "label"
[label]
context = "Question: {query}\\n"
item = "Text: {document}\\nGood or bad?"
labels = [" good", " bad"]
"""
HEEDING = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from onepass.cli.main import main; sys.exit(main())"
)
WAIT_SECONDS = 600


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path]) -> str:
    return str(checkpoint("qwen3"))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_beir(tmp_path_factory.mktemp("collection") / "beir"))


def mean_of_run(run: Path, metric: str, measure: str) -> float:
    """By trec_eval; by our own metrics, which tests/evaluate compares with it, where trec_eval is not installed."""
    if find_spec("pytrec_eval") is None:
        ours = {query: [document.id for document in ranking] for query, ranking in read_run(run).items()}
        return sum(Metric.parse(metric).value(ours[query], QRELS[query]) for query in QRELS) / len(QRELS)
    trec_eval = import_module("pytrec_eval")
    with run.open() as file:
        values = trec_eval.RelevanceEvaluator(QRELS, {measure}).evaluate(trec_eval.parse_run(file))
    return sum(value[measure] for value in values.values()) / len(QRELS)


def systems(document: dict[str, Any]) -> dict[str, Any]:
    return {system["name"]: system["metrics"] for system in document["systems"]}


def test_a_model_and_a_template_are_compared(
    model: str, dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One evaluation with every output; the runs that it leaves have the metrics that it prints, by trec_eval."""
    (tmp_path / "words.toml").write_text(OTHER_WORDS)
    names = ["per.jsonl", "a.run", "b.run", "page.html"]
    per_query, first, second, page = (tmp_path / name for name in names)
    options = ["--compare", str(tmp_path / "words.toml"), "--per-query", str(per_query), "--run-out", str(first)]
    options += ["--compare-run-out", str(second), "--html", str(page), "--json", "--bootstrap", "200"]
    options += ["--run", str(write_run(tmp_path / "first.run")), "--metrics", "ndcg@3,map,mrr"]
    assert main(["evaluate", model, "--dataset", dataset, "--dtype", "float32", *options]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    document = json.loads(out)
    assert list(systems(document)) == ["first.run", "qwen3", "qwen3 with words.toml"]
    assert document["collection"] == {"queries": 4, "documents": 6, "candidates": 24}
    for name, run in {"first.run": tmp_path / "first.run", "qwen3": first, "qwen3 with words.toml": second}.items():
        for metric, measure in {"ndcg@3": "ndcg_cut_3", "map": "map", "mrr": "recip_rank"}.items():
            interval = systems(document)[name][metric]
            assert interval["mean"] == pytest.approx(mean_of_run(run, metric, measure), abs=1e-9)
            assert interval["low"] <= interval["mean"] <= interval["high"]
    assert first.read_text() != second.read_text()
    pairs = [(each["system"], each["baseline"]) for each in document["comparisons"]]
    assert pairs == [
        ("qwen3", "first.run"),
        ("qwen3 with words.toml", "first.run"),
        ("qwen3 with words.toml", "qwen3"),
    ]
    last = document["comparisons"][-1]["metrics"]["map"]
    by_system = {name: metrics["map"]["mean"] for name, metrics in systems(document).items()}
    assert last["mean"] == pytest.approx(by_system["qwen3 with words.toml"] - by_system["qwen3"], abs=1e-12)
    assert last["wins"] + last["losses"] + last["ties"] == 4
    lines = [json.loads(line) for line in per_query.read_text().splitlines()]
    assert [(line["system"], line["query_id"]) for line in lines] == [
        (name, query) for name in ("qwen3", "qwen3 with words.toml") for query in QUERIES
    ]
    assert sum(line["metrics"]["map"] for line in lines[:4]) / 4 == pytest.approx(by_system["qwen3"], abs=1e-12)
    assert {entry["id"]: entry["grade"] for entry in lines[0]["ranking"]} == {d: QRELS["q1"].get(d) for d in DOCUMENTS}
    html = page.read_text()
    assert "qwen3 with words.toml against qwen3" in html
    assert html.count("<svg") == 3
    assert QUERIES["q1"] in html or last["ties"] == 4


def test_a_server_gives_the_metrics_of_the_library(
    model: str, dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--run", str(write_run(tmp_path / "run")), "--json", "--method", "label"]
    assert main(["evaluate", model, "--dataset", dataset, "--dtype", "float32", *run]) == 0
    local = json.loads(capsys.readouterr().out)["systems"][1]
    with Scorer.load(model, dtype="float32") as scorer, served(scorer) as url:
        (tmp_path / "words.toml").write_text(OTHER_WORDS)
        assert (
            main(["evaluate", "--url", url, "--dataset", dataset, *run, "--compare", str(tmp_path / "words.toml")]) == 0
        )
        remote = json.loads(capsys.readouterr().out)["systems"]
    assert remote[1]["metrics"] == local["metrics"]
    assert [system["name"] for system in remote[1:]] == [url, f"{url} with words.toml"]
    assert remote[2]["metrics"] != remote[1]["metrics"], "the template is the client's"


def test_bm25_alone_as_a_table(dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--dataset", dataset, "--first-stage-only"]) == 0
    out = capsys.readouterr().out
    assert "ndcg@10" in out
    assert "4 queries, 6 documents, depth 100" in out
    assert "bm25 has ndcg@10 0." in out


def test_a_stored_run_is_compared_without_a_model_of_its_own(
    model: str, dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run that puts the relevant documents of q4 and q3 first; `--fail-under` judges the model, not the run."""
    stored = write_run(tmp_path / "stored", ["d6", "d5", "d4", "d3", "d2", "d1"])
    command = ["evaluate", model, "--dataset", dataset, "--dtype", "float32", "--json", "--compare", str(stored)]
    assert main([*command, "--fail-under", "mrr@10=1.01", "--fail-under", "map=0"]) == 1
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert systems(document)["stored"]["mrr@10"]["mean"] == pytest.approx((1 / 5 + 1 / 4 + 1 + 1) / 4)
    assert document["systems"][2]["seconds"] is None
    mean = systems(document)["qwen3"]["mrr@10"]["mean"]
    assert err == f"onepass: mrr@10 is {mean:.4f}, below 1.01\n"


def test_oddities_are_counted_on_stderr(dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    qrels = tmp_path / "qrels"
    qrels.write_text("q1 0 d1 1\nq1 0 nowhere 1\n")
    files = ["--corpus", f"{dataset}/corpus.jsonl", "--queries", f"{dataset}/queries.jsonl", "--qrels", str(qrels)]
    assert main(["evaluate", *files, "--first-stage-only", "--json"]) == 0
    out, err = capsys.readouterr()
    assert (
        f"onepass: 1 of 2 judged documents of {qrels} are not in {dataset}/corpus.jsonl (the first: 'nowhere')" in err
    )
    assert len(json.loads(out)["warnings"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--corpus", "c"], "missing: --queries, --qrels"),
        (["--dataset", "d", "--qrels", "q"], "--dataset has its own files: leave out --qrels"),
        (["--dataset", "d", "--split", "dev"], "d has no qrels/dev.tsv"),
        (["--dataset", "d", "--metrics", "f1"], "a metric is ndcg"),
        (["--dataset", "d", "--fail-under", "map@7=0.5"], "--fail-under map@7: it is none of --metrics"),
        (["--dataset", "d", "--fail-under", "map"], "must be METRIC=VALUE"),
        (["--dataset", "d", "--confidence", "95"], "--confidence must lie between 0 and 1"),
        (["--dataset", "d", "--compare", "no.toml"], "the template file no.toml must be TOML"),
        (["smollm2-135m", "--dataset", "d", "--compare", "smollm2-135m"], "is the system itself"),
        (["smollm2-135m", "--dataset", "d", "--url", "http://localhost:1"], "give MODEL or --url, not both"),
        (["--dataset", "d", "--first-stage-only", "--compare", "x"], "--first-stage-only evaluates no model"),
        (["--dataset", "d", "--html", "no/folder/page.html"], "there is no folder no/folder"),
        (["--dataset", "d", "--run-out", "x", "--per-query", "x"], "every output needs a file of its own"),
    ],
)
def test_mistakes_are_found_before_a_model_is_opened(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onepass.cli.evaluate.systems.open_model_of", None)
    try:
        status = main(["evaluate", *arguments])
    except SystemExit as exit:  # argparse's own
        status = int(exit.code or 0)
    assert status == 2
    assert message in capsys.readouterr().err


def test_the_default_metrics_of_the_command_are_the_librarys() -> None:
    assert tuple(METRICS.split(",")) == DEFAULT_METRICS


def test_an_interrupt_leaves_whole_queries(model: str, tmp_path: Path) -> None:
    """More queries than anyone waits for; Ctrl-C after the first few."""
    files = {name: tmp_path / name for name in ("corpus", "queries", "qrels", "run", "per_query", "run_out")}
    files["corpus"].write_text("".join(f"d{n}\tthe fox number {n} jumps\n" for n in range(20)))
    queries = range(4_000)
    files["queries"].write_text("".join(f"q{n}\twhich fox jumps {n} times\n" for n in queries))
    files["qrels"].write_text("".join(f"q{n} 0 d{n % 20} 1\n" for n in queries))
    files["run"].write_text("".join(f"q{n} Q0 d{m} 1 {m} t\n" for n in queries for m in range(20)))
    options = [word for name, path in files.items() for word in ("--" + name.replace("_", "-"), str(path))]
    command = [sys.executable, "-c", HEEDING, "evaluate", model, *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + WAIT_SECONDS
        while not files["per_query"].exists() or files["per_query"].read_text().count("\n") < 3:
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < until, "no query was finished"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 130
    lines = [json.loads(line) for line in files["per_query"].read_text().splitlines()]
    assert [line["query_id"] for line in lines] == [f"q{n}" for n in range(len(lines))]
    assert 3 <= len(lines) < len(queries)
    assert files["run_out"].read_text().count("\n") in (20 * len(lines), 20 * (len(lines) - 1))
    assert re.search(rf"({len(lines):,}|{len(lines) - 1:,}) of 4,000 queries are in {files['per_query']} and ", err)
    assert "onepass: interrupted" in err
