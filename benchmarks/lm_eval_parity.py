"""lm-evaluation-harness with `--model hf`, `--model onepass` and `local-completions` against our server, on the same
weights and local tasks: the same accuracies, log-likelihoods within a tolerance, and items per second of each.

    python benchmarks/lm_eval_parity.py --out result.json

`make test-environments` builds the two Pythons that have lm-eval 0.4.13. Nothing is downloaded: the bundled SmolLM2 is
written as a Hugging Face folder in float32. `--exact` runs `hf` in float64 too, and tells how far each is from it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from lm_eval_runs import (
    CHOICES,
    TASKS,
    CountTokens,
    Run,
    accuracies,
    differences,
    evaluate,
    greedy_differences,
    write_tasks,
)

from onepass.evidence.provenance import hardware
from onepass.loading.export import export
from onepass.loading.model import open_model

TOLERANCE = 1e-4  # of a log-likelihood, per token of the text
PORT = 18610
EVAL = Path(__file__).parents[1] / ".eval-venv"


def write_model(folder: Path) -> None:
    import jax.numpy as jnp

    model = open_model("smollm2-135m")
    export(model.config, model.load(jnp.dtype("float32")), folder)
    assert model.tokenizer is not None
    (folder / "tokenizer.json").write_text(model.tokenizer.to_json(), encoding="utf-8")
    special = {name: text for name, text in model.chat.special_tokens.items() if name != "unk_token"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **special, "chat_template": model.chat.default}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def token_counter() -> CountTokens:
    tokenizer = open_model("smollm2-135m").tokenizer
    assert tokenizer is not None
    return lambda text: len(tokenizer.encode_item(text))


def compared(reference: Run, other: Run, count_tokens: CountTokens) -> dict[str, Any]:
    """The largest differences of a log-likelihood in each task, whole and per token, and what else must be equal."""
    by_task = {task: differences(reference, other, task) for task in reference.answers}
    per_token = {
        task: max(
            difference / count_tokens(answer.text)
            for difference, answer in zip(found, reference.answers[task], strict=True)
        )
        for task, found in by_task.items()
    }
    greedy, theirs, ours = greedy_differences(reference, other), accuracies(reference), accuracies(other)
    return {
        "log_likelihoods": sum(map(len, by_task.values())),
        "max_difference": {task: max(found) for task, found in by_task.items()},
        "max_difference_per_token": per_token,
        "greedy_differences": greedy,
        "accuracies_equal": {name: ours[name] == value for name, value in theirs.items()},
        "passes": max(per_token.values()) <= TOLERANCE and greedy == 0 and ours == theirs,
    }


def serve(python: Path, model: Path) -> "subprocess.Popen[bytes]":
    command = [str(python), "-m", "onepass.cli.main", "serve", str(model), "--dtype", "float32", "--port", str(PORT)]
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
    parser.add_argument("--hf-python", type=Path, default=EVAL / "hf/bin/python", help="with lm-eval and transformers")
    parser.add_argument("--onepass-python", type=Path, default=EVAL / "onepass/bin/python", help="with lm-eval")
    parser.add_argument("--docs", type=int, default=40, help="documents per task")
    parser.add_argument("--exact", action="store_true", help="run hf in float64 too")
    parser.add_argument("--skip-server", action="store_true", help="do not run local-completions")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        report(options, run_all(options, Path(temporary)))


def run_all(options: argparse.Namespace, folder: Path) -> dict[str, Run]:
    model, tasks = folder / "smollm2", folder / "tasks"
    write_model(model)
    tasks.mkdir()
    write_tasks(tasks, TASKS, options.docs, token_counter())
    hf = [str(options.hf_python), "-m", "lm_eval", "--model", "hf", "--device", "cpu", "--batch_size", "16"]
    ours = [str(options.onepass_python), "-m", "onepass.integrations.lm_eval", "--model", "onepass"]
    remote = [str(options.onepass_python), "-m", "lm_eval", "--model", "local-completions", "--batch_size", "16"]
    url = f"base_url=http://127.0.0.1:{PORT}/v1/completions,model=default,max_length=2048"
    commands = {
        "hf": [*hf, "--model_args", f"pretrained={model},dtype=float32"],
        "onepass": [*ours, "--model_args", f"model={model},dtype=float32"],
    }
    if options.exact:
        commands["hf-float64"] = [*hf, "--model_args", f"pretrained={model},dtype=float64"]
    runs = {name: evaluate(command, TASKS, tasks, folder / name) for name, command in commands.items()}
    if not options.skip_server:
        server = serve(options.onepass_python, model)
        try:
            runs["local-completions"] = evaluate([*remote, "--model_args", url], TASKS, tasks, folder / "remote")
        finally:
            server.terminate()
            server.wait(60)
    return runs


def report(options: argparse.Namespace, runs: dict[str, Run]) -> None:
    items = options.docs * sum(1 if task.rolling else CHOICES for task in TASKS)
    speeds = {
        name: {
            "evaluation_s": run.eval_s,
            "wall_s": run.wall_s,
            "cpu_s": run.cpu_s,  # of local-completions, without its server's
            "items_per_s": items / run.eval_s,
        }
        for name, run in runs.items()
    }
    count_tokens = token_counter()
    others = [name for name in runs if not name.startswith("hf")]
    comparisons = {name: compared(runs["hf"], runs[name], count_tokens) for name in others}
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
        "results": {name: run.metrics for name, run in runs.items()},
    }
    if options.exact:
        exact = runs["hf-float64"]
        document["compared_with_float64"] = {
            name: compared(exact, runs[name], count_tokens) for name in ("hf", *others)
        }
    options.out.write_text(json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in document.items() if name != "results"}, indent=1, default=str))
    if not all(comparison["passes"] for comparison in comparisons.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
