"""lm-evaluation-harness with `--model hf`, `--model onepass` and `local-completions` against our server, on the same
weights and local tasks: the same accuracies, log-likelihoods within a tolerance, and the speed of each.

    python benchmarks/lm_eval_parity.py --out result.json

Each model is loaded once, in a process of its own (`lm_eval_worker.py`), and the models take turns, task by task.
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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lm_eval_runs import (
    CHOICES,
    TASKS,
    CountTokens,
    Run,
    Task,
    accuracies,
    differences,
    greedy_differences,
    write_tasks,
)
from lm_eval_turns import Worker, ratios, totals

from onepass.evidence.provenance import commit, hardware, versions
from onepass.loading.export import export
from onepass.loading.model import open_model

TOLERANCE = 1e-4  # of a log-likelihood, per token of the text
PORT = 18610
EVAL = Path(__file__).parents[1] / ".eval-venv"
BATCH_SIZE = "16"  # of hf and local-completions: hf took more CPU time per token with 1 and with 4
IN_FLIGHT = "32"  # of onepass, its default


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


@contextmanager
def serving(python: Path, model: Path) -> Iterator[None]:
    command = [str(python), "-m", "onepass.cli.main", "serve", str(model), "--dtype", "float32", "--port", str(PORT)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(server)
        yield
    finally:
        server.terminate()
        server.wait(60)


def wait_until_ready(server: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health") as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.5)
        if server.poll() is not None:
            break
    sys.exit("the server did not become ready")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hf-python", type=Path, default=EVAL / "hf/bin/python", help="with lm-eval and transformers")
    parser.add_argument("--onepass-python", type=Path, default=EVAL / "onepass/bin/python", help="with lm-eval")
    parser.add_argument("--docs", type=int, default=12, help="documents per task, 5 or more")
    parser.add_argument("--exact", action="store_true", help="run hf in float64 too")
    parser.add_argument("--skip-server", action="store_true", help="do not run local-completions")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        workers = start(options, Path(temporary), stack)
        for task in TASKS:
            for worker in workers.values():
                worker.evaluate(task)
        for worker in workers.values():
            worker.close()
    report(options, workers, load_before)


def start(options: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, Worker]:
    model, tasks = folder / "smollm2", folder / "tasks"
    write_model(model)
    tasks.mkdir()
    write_tasks(tasks, TASKS, options.docs, token_counter())
    hf, ours = options.hf_python, options.onepass_python
    arguments = f"model={model},dtype=float32,warm_up=True"
    workers = {
        "hf": Worker(hf, "hf", f"pretrained={model},dtype=float32", tasks, BATCH_SIZE),
        "onepass": Worker(ours, "onepass", arguments, tasks, IN_FLIGHT),
    }
    if options.exact:
        workers["hf-float64"] = Worker(hf, "hf", f"pretrained={model},dtype=float64", tasks, BATCH_SIZE)
    if not options.skip_server:
        stack.enter_context(serving(ours, model))
        url = f"base_url=http://127.0.0.1:{PORT}/v1/completions,model=default,max_length=2048"
        workers["local-completions"] = Worker(ours, "local-completions", url, tasks, BATCH_SIZE)
    return workers


def num_items(tasks: Sequence[Task], docs: int) -> int:
    return docs * sum(1 if task.rolling else CHOICES for task in tasks)


def speeds(worker: Worker, docs: int) -> dict[str, Any]:
    """CPU seconds of local-completions are without its server's."""
    run, scoring = worker.run(), worker.sum_of("scoring_s")
    assert scoring is not None
    by_task = {
        task.name: {**worker.speeds[task.name], "items_per_s": num_items([task], docs) / seconds}
        for task in TASKS
        if (seconds := worker.speeds[task.name]["scoring_s"]) is not None
    }
    return {
        "items_per_s": num_items(TASKS, docs) / scoring,
        **totals(worker),
        "load_s": worker.load_s,
        "start_s": worker.start_s,  # imports, load and the first request
        "wall_s": run.wall_s,
        "tasks": by_task,
    }


def report(options: argparse.Namespace, workers: dict[str, Worker], load_before: tuple[float, float, float]) -> None:
    count_tokens = token_counter()
    runs = {name: worker.run() for name, worker in workers.items()}
    others = [name for name in runs if not name.startswith("hf")]
    comparisons = {name: compared(runs["hf"], runs[name], count_tokens) for name in others}
    document = {
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "command": f"python benchmarks/lm_eval_parity.py --docs {options.docs}"
        + "".join(f" --{name.replace('_', '-')}" for name in ("exact", "skip_server") if getattr(options, name)),
        "model": "smollm2-135m in float32",
        "lm_eval": "0.4.13",
        "versions": versions(),
        "docs_per_task": options.docs,
        "items": num_items(TASKS, options.docs),
        "hardware": hardware(),
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "tolerance": TOLERANCE,
        "speeds": {name: speeds(worker, options.docs) for name, worker in workers.items()},
        "times_hf": {name: ratios(workers["hf"], workers[name]) for name in others},
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
