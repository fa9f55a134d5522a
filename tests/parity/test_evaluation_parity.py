"""Reranking by onepass and by PyTorch transformers gives the same nDCG: one collection, one tiny model, both methods.

The prompts are written out here, tokenised whole by the checkpoint's own tokenizer and read by transformers; trec_eval
computes the metrics of its order. Needs the reference environment. A model with other weights is the control.
"""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from evaluate.small_collection import DOCUMENTS, QRELS, QUERIES, text_of, write_beir, write_run
from onepass.cli.main import main
from reference.oracle import ask

CLOSEST = 1e-5  # two documents whose scores are no closer than this have one order in float32


def label_sequence(tokenizer: Tokenizer, query: str, document: str) -> dict[str, list[int]]:
    prompt = f"Query: {query}\nDocument: {document}\nDoes the document answer the query? Answer yes or no.\nAnswer:"
    labels = [tokenizer.encode(text, add_special_tokens=False).ids[0] for text in (" yes", " no")]
    return {"tokens": tokenizer.encode(prompt).ids, "labels": labels}


def likelihood_sequence(tokenizer: Tokenizer, query: str, document: str) -> dict[str, list[int]]:
    prompt = f"Passage: {document}\nPlease write a question based on this passage.\nQuestion:"
    continuation = tokenizer.encode(f" {query}", add_special_tokens=False).ids
    return {"tokens": tokenizer.encode(prompt).ids, "labels": [0], "continuation": continuation}


SEQUENCES = {"label": label_sequence, "likelihood": likelihood_sequence}
Scores = dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def transformers_scores(checkpoint: Callable[[str], Path], reference_python: Path | None) -> dict[str, Scores]:
    """By method, from one process of the reference environment."""
    if reference_python is None:
        pytest.skip("no reference environment: PyTorch was not cheap to install here")
    model = checkpoint("qwen3")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    pairs = [(method, query, document) for method in SEQUENCES for query in QUERIES for document in DOCUMENTS]
    sequences = [SEQUENCES[method](tokenizer, QUERIES[query], text_of(document)) for method, query, document in pairs]
    (answer,) = ask(reference_python, [{"model": str(model), "dtype": "float32", "sequences": sequences}])
    scores: dict[str, Scores] = {method: {query: {} for query in QUERIES} for method in SEQUENCES}
    for (method, query, document), read in zip(pairs, answer["sequences"], strict=True):
        yes_no = read["logprobs"]
        scores[method][query][document] = yes_no[0] - yes_no[1] if method == "label" else sum(read["continuation"])
    return scores


def evaluated(model: Path, method: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    """nDCG@3 of each query, from the command."""
    dataset, run, per_query = write_beir(folder / "beir"), write_run(folder / "run"), folder / "per_query.jsonl"
    files = ["--dataset", str(dataset), "--run", str(run), "--per-query", str(per_query)]
    assert main(["evaluate", str(model), *files, "--method", method, "--dtype", "float32", "--metrics", "ndcg@3"]) == 0
    capsys.readouterr()
    lines = [json.loads(line) for line in per_query.read_text().splitlines()]
    return {line["query_id"]: line["metrics"]["ndcg@3"] for line in lines}


@pytest.mark.parametrize("method", list(SEQUENCES))
def test_ndcg_equals_that_of_transformers(
    checkpoint: Callable[[str], Path],
    transformers_scores: dict[str, Scores],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    trec_eval: Any,
    method: str,
) -> None:
    scores = transformers_scores[method]
    for documents in scores.values():
        ordered = sorted(documents.values())
        assert min(b - a for a, b in pairwise(ordered)) > CLOSEST
    theirs = trec_eval.RelevanceEvaluator(QRELS, {"ndcg_cut_3"}).evaluate(scores)
    wanted = {query: values["ndcg_cut_3"] for query, values in theirs.items()}
    ours = evaluated(checkpoint("qwen3"), method, tmp_path / "same", capsys)
    assert ours == {query: pytest.approx(value, abs=1e-9) for query, value in wanted.items()}
    others = evaluated(checkpoint("qwen2"), method, tmp_path / "other", capsys)
    assert others != {query: pytest.approx(value, abs=1e-9) for query, value in wanted.items()}
