"""lm-evaluation-harness with `--model hf`, `--model onepass` and `local-completions` against our server, on the same
weights and local tasks: the same accuracies, log-likelihoods within a tolerance, and items per second of each.

    python benchmarks/lm_eval_parity.py --hf-python PYTHON --onepass-python PYTHON --out result.json

Either Python has lm-eval 0.4.13; the first also torch and transformers, the second onepass. Nothing is downloaded: the
bundled SmolLM2 is written as a Hugging Face folder in float32.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from onepass.evidence.provenance import hardware
from onepass.loading.export import export
from onepass.loading.model import open_model
from onepass.validate.prose import DID, WHAT, WHERE, WHO, prose

TOLERANCE = 1e-4  # of a log-likelihood, per token of the text
PORT = 18610
SETTINGS = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "1"}


def multiple_choice(docs: int, seed: int, whole: bool) -> list[dict[str, Any]]:
    """Which sentence goes on (`whole`), or which single word does, after a passage of some 150 tokens."""
    random = np.random.default_rng(seed)
    out = []
    for number in range(docs):
        ends = [
            f" {random.choice(WHO)} {random.choice(DID)} {random.choice(WHAT)} {random.choice(WHERE)}."
            if whole
            else f" {word}"
            for word in random.choice([*DID, "today", "again", "there"], 4, replace=False)
        ]
        out.append({"passage": prose(9, seed + number), "choices": ends, "answer": int(random.integers(4))})
    return out


def task(name: str, data: Path, **fields: Any) -> dict[str, Any]:
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        **fields,
    }


def write_tasks(folder: Path, docs: int) -> list[str]:
    choice = {
        "output_type": "multiple_choice",
        "doc_to_text": "{{passage}} Then",
        "doc_to_target": "answer",
        "doc_to_choice": "choices",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    rolling = {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{passage}}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "byte_perplexity"}],
    }
    tasks = []
    for name, whole, seed, shots, kind in (
        ("one_token", False, 100, 0, choice),
        ("many_tokens", True, 200, 0, choice),
        ("few_shot", True, 300, 3, choice),
        ("rolling", True, 400, 0, rolling),
    ):
        data = folder / f"{name}.jsonl"
        rows = multiple_choice(docs, seed, whole)
        data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        fewshot = {"num_fewshot": shots, "fewshot_split": "test"} if shots else {"num_fewshot": 0}
        made = task(name, data, **kind, **fewshot)
        (folder / f"{name}.yaml").write_text(json.dumps(made), encoding="utf-8")  # JSON is YAML
        tasks.append(name)
    return tasks


def write_model(folder: Path) -> None:
    import jax.numpy as jnp

    model = open_model("smollm2-135m")
    export(model.config, model.load(jnp.dtype("float32")), folder)
    assert model.tokenizer is not None
    (folder / "tokenizer.json").write_text(model.tokenizer.to_json(), encoding="utf-8")
    special = {name: text for name, text in model.chat.special_tokens.items() if name != "unk_token"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **special, "chat_template": model.chat.default}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def evaluate(command: list[str], tasks: list[str], folder: Path, out: Path) -> dict[str, Any]:
    began = time.perf_counter()
    arguments = ["--tasks", ",".join(tasks), "--include_path", str(folder), "--log_samples", "--output_path", str(out)]
    done = subprocess.run(
        [*command, *arguments], env={**os.environ, **SETTINGS}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    seconds = time.perf_counter() - began
    (results,) = out.rglob("results_*.json")
    document = json.loads(results.read_text(encoding="utf-8"))
    responses, scored = {}, {}
    for name in tasks:
        (samples,) = out.rglob(f"samples_{name}_*.jsonl")
        rows = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
        responses[name] = {row["doc_id"]: row["resps"] for row in rows}
        scored[name] = {row["doc_id"]: scored_texts(row["arguments"]) for row in rows}
    return {
        "results": document["results"],
        "responses": responses,
        "scored": scored,
        "wall_s": seconds,
        "eval_s": float(document["total_evaluation_time_seconds"]),
    }


def scored_texts(arguments: dict[str, dict[str, str]]) -> list[str]:
    """What each request of a document asks the log-likelihood of: its last argument."""
    requests = [arguments[f"gen_args_{number}"] for number in range(len(arguments))]
    return [request[max(request)] for request in requests]


def numbers(value: Any) -> list[tuple[float, bool | None]]:
    """Log-likelihoods in a sample's responses, with whether they are greedy where that is told."""
    if isinstance(value, list) and len(value) == 2 and str(value[1]) in ("True", "False"):
        return [(float(value[0]), str(value[1]) == "True")]
    if isinstance(value, list):
        return [number for inner in value for number in numbers(inner)]
    return [(float(value), None)]


def compared(reference: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The largest differences of a log-likelihood in each task, whole and per token, and what else must be equal."""
    tokenizer = open_model("smollm2-135m").tokenizer
    assert tokenizer is not None
    differences: dict[str, float] = {}
    per_token: dict[str, float] = {}
    greedy = count = 0
    for name, by_doc in reference["responses"].items():
        pairs = [
            pair
            for doc, wanted in by_doc.items()
            for pair in zip(numbers(wanted), numbers(other["responses"][name][doc]), strict=True)
        ]
        tokens = [len(tokenizer.encode_item(text)) for doc in by_doc for text in reference["scored"][name][doc]]
        found = [abs(a - b) for (a, _), (b, _) in pairs]
        differences[name] = max(found)
        per_token[name] = max(difference / count for difference, count in zip(found, tokens, strict=True))
        greedy += sum(greedy_a != greedy_b for (_, greedy_a), (_, greedy_b) in pairs)
        count += len(pairs)
    exact = {
        f"{name}.{metric}": value == other["results"][name][metric]
        for name, metrics in reference["results"].items()
        for metric, value in metrics.items()
        if metric.startswith("acc") and isinstance(value, float)
    }
    return {
        "log_likelihoods": count,
        "max_difference": differences,
        "max_difference_per_token": per_token,
        "greedy_differences": greedy,
        "accuracies_equal": exact,
        "passes": max(per_token.values()) <= TOLERANCE and greedy == 0 and all(exact.values()),
    }


def serve(python: str, model: Path) -> "subprocess.Popen[bytes]":
    import urllib.request

    command = [python, "-m", "onepass.cli.main", "serve", str(model), "--dtype", "float32", "--port", str(PORT)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health") as answer:
                if answer.status == 200:
                    return server
        except OSError:
            time.sleep(0.5)
    server.kill()
    sys.exit("the server did not become ready")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hf-python", required=True, help="with lm-eval, torch and transformers")
    parser.add_argument("--onepass-python", required=True, help="with lm-eval and onepass")
    parser.add_argument("--docs", type=int, default=40, help="documents per task")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = folder / "smollm2"
        write_model(model)
        (folder / "tasks").mkdir()
        tasks = write_tasks(folder / "tasks", options.docs)
        where = folder / "tasks"
        ours = [options.onepass_python, "-m", "onepass.integrations.lm_eval", "--model", "onepass"]
        remote = [options.onepass_python, "-m", "lm_eval", "--model", "local-completions", "--batch_size", "16"]
        hf = [options.hf_python, "-m", "lm_eval", "--model", "hf", "--device", "cpu", "--batch_size", "16"]
        hf += ["--model_args", f"pretrained={model},dtype=float32"]
        ours += ["--model_args", f"model={model},dtype=float32"]
        url = f"base_url=http://127.0.0.1:{PORT}/v1/completions,model=default,max_length=2048"
        remote += ["--model_args", url]
        runs = {name: evaluate(run, tasks, where, folder / name) for name, run in (("hf", hf), ("onepass", ours))}
        server = serve(options.onepass_python, model)
        try:
            runs["local-completions"] = evaluate(remote, tasks, where, folder / "remote")
        finally:
            server.terminate()
            server.wait(60)
    report(options, tasks, runs)


def report(options: argparse.Namespace, tasks: list[str], runs: dict[str, dict[str, Any]]) -> None:
    items = options.docs * (4 * (len(tasks) - 1) + 1)
    speeds = {
        name: {"evaluation_s": run["eval_s"], "wall_s": run["wall_s"], "items_per_s": items / run["eval_s"]}
        for name, run in runs.items()
    }
    comparisons = {name: compared(runs["hf"], run) for name, run in runs.items() if name != "hf"}
    document = {
        "date": time.strftime("%Y-%m-%d"),
        "model": "smollm2-135m in float32",
        "lm_eval": "0.4.13",
        "docs_per_task": options.docs,
        "items": items,
        "hardware": hardware(),
        "load_average": os.getloadavg(),
        "tolerance": TOLERANCE,
        "speeds": speeds,
        "compared_with_hf": comparisons,
        "results": {name: run["results"] for name, run in runs.items()},
    }
    options.out.write_text(json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8")
    print(json.dumps({"speeds": speeds, "compared_with_hf": comparisons}, indent=1))
    if not all(comparison["passes"] for comparison in comparisons.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
