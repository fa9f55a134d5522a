"""Local tasks for lm-evaluation-harness, runs of it on them, and how two runs differ.

The tasks are files: multiple choice with answers of one token and of several, few-shot with examples drawn for each
document and with the same for all, and rolling log-likelihoods.
Which models are run is the caller's: `lm_eval_parity.py` measures, `tests/integrations/lm_eval_env` tests.
"""

import json
import os
import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from onepass.validate.prose import DID, WHAT, WHERE, WHO, prose

CHOICES = 4
WORDS = (*DID, "today", "again", "there", "yes", "no", "true", "false", "good", "bad", "Paris", "Rome")
SETTINGS = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "1"}
CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class Task:
    name: str
    seed: int
    shots: int = 0
    same_shots: bool = False  # every document has the same examples, as MMLU has; else the harness draws them
    one_token: bool = False
    rolling: bool = False
    cue: str = "Then"  # the context's last word
    sentences: int = 9  # of a passage


TASKS = (
    Task("one_token", 100, one_token=True),
    Task("many_tokens", 200),
    Task("few_shot", 300, shots=3),
    Task("same_shots", 500, shots=3, same_shots=True, one_token=True),
    Task("rolling", 400, rolling=True),
)


@dataclass(frozen=True)
class Answer:
    """To one request of a document: log-likelihood of `text`; rolling ones do not say whether they are greedy."""

    text: str
    logprob: float
    is_greedy: bool | None


@dataclass(frozen=True)
class Run:
    metrics: dict[str, dict[str, Any]]  # by task
    answers: dict[str, list[Answer]]  # by task, in the order of documents
    wall_s: float
    eval_s: float  # as the harness tells it
    cpu_s: float  # of the whole process


def write_tasks(folder: Path, tasks: Sequence[Task], docs: int, count_tokens: CountTokens) -> None:
    for task in tasks:
        rows = documents(task, docs, count_tokens)
        data = folder / f"{task.name}.jsonl"
        write_rows(data, rows)
        if task.same_shots:
            write_rows(examples_of(data), examples(task, docs, count_tokens))
        (folder / f"{task.name}.yaml").write_text(json.dumps(settings(task, data)), encoding="utf-8")  # JSON is YAML


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def examples_of(data: Path) -> Path:
    """The file of `examples` that goes with `data`."""
    return data.with_suffix(".examples.jsonl")


def examples(task: Task, docs: int, count_tokens: CountTokens) -> list[dict[str, Any]]:
    """That all documents have."""
    return documents(replace(task, seed=task.seed + docs), task.shots, count_tokens)


def documents(task: Task, docs: int, count_tokens: CountTokens) -> list[dict[str, Any]]:
    """Which sentence goes on, or which word of one token, after a passage."""
    random = np.random.default_rng(task.seed)
    words = [word for word in WORDS if count_tokens(f" {word}") == 1]

    def choices() -> list[str]:
        if task.one_token:
            return [f" {word}" for word in random.choice(words, CHOICES, replace=False)]
        return [" " + " ".join(random.choice(part) for part in (WHO, DID, WHAT, WHERE)) + "." for _ in range(CHOICES)]

    return [
        {
            "passage": prose(task.sentences, task.seed + number),
            "choices": choices(),
            "answer": int(random.integers(CHOICES)),
        }
        for number in range(docs)
    ]


def settings(task: Task, data: Path) -> dict[str, Any]:
    files = {"test": str(data), **({"examples": str(examples_of(data))} if task.same_shots else {})}
    shared: dict[str, Any] = {
        "task": task.name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": files},
        "test_split": "test",
        "num_fewshot": task.shots,
    }
    if task.shots:
        shared |= {"fewshot_split": "examples" if task.same_shots else "test"}
    if task.same_shots:
        shared |= {"fewshot_config": {"sampler": "first_n"}}
    if task.rolling:
        return shared | {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{passage}}",
            "metric_list": [{"metric": "word_perplexity"}, {"metric": "byte_perplexity"}],
        }
    return shared | {
        "output_type": "multiple_choice",
        "doc_to_text": "{{passage}} " + task.cue,
        "doc_to_target": "answer",
        "doc_to_choice": "choices",
        "target_delimiter": "",  # choices begin with a space of their own
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }


def evaluate(command: Sequence[str], tasks: Sequence[Task], folder: Path, out: Path) -> Run:
    """`command` is the harness with its model; `folder` has the tasks' files. Raises with what a failed run said."""
    names = ",".join(task.name for task in tasks)
    where = ["--tasks", names, "--include_path", str(folder), "--log_samples", "--output_path", str(out)]
    # The harness's own cache of data sets would outlive the run.
    environment = {**os.environ, **SETTINGS, "HF_DATASETS_CACHE": str(out / "datasets")}
    began, cpu = time.perf_counter(), children_cpu_s()
    done = subprocess.run([*command, *where], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    wall, cpu = time.perf_counter() - began, children_cpu_s() - cpu
    (results,) = out.rglob("results_*.json")
    document = json.loads(results.read_text(encoding="utf-8"))
    answers = {task.name: read_answers(out, task) for task in tasks}
    return Run(document["results"], answers, wall, float(document["total_evaluation_time_seconds"]), cpu)


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read_answers(out: Path, task: Task) -> list[Answer]:
    (samples,) = out.rglob(f"samples_{task.name}_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    rows.sort(key=lambda row: int(row["doc_id"]))
    return [answer for row in rows for answer in answers_of(row)]


def answers_of(row: dict[str, Any]) -> list[Answer]:
    """The harness writes a response as [["-1.5", "False"]], and a rolling one as ["-1.5"]."""
    answers = []
    for number, (response,) in enumerate(row["resps"]):
        arguments = row["arguments"][f"gen_args_{number}"]
        text = arguments[max(arguments)]  # the last argument is what is scored
        logprob, greedy = response if isinstance(response, list) else (response, None)
        answers.append(Answer(text, float(logprob), None if greedy is None else str(greedy) == "True"))
    return answers


def differences(reference: Run, other: Run, task: str) -> list[float]:
    """Of each log-likelihood; both runs must have been asked the same."""
    pairs = list(zip(reference.answers[task], other.answers[task], strict=True))
    assert all(a.text == b.text for a, b in pairs)
    return [abs(a.logprob - b.logprob) for a, b in pairs]


def accuracies(run: Run) -> dict[str, float]:
    """Without their standard errors: Python sums more exactly since 3.12, so that last digits differ."""
    return {
        f"{task}.{metric}": value
        for task, metrics in run.metrics.items()
        for metric, value in metrics.items()
        if metric.startswith("acc") and "stderr" not in metric and isinstance(value, float)
    }


def greedy_differences(reference: Run, other: Run) -> int:
    return sum(
        a.is_greedy != b.is_greedy
        for task, answers in reference.answers.items()
        for a, b in zip(answers, other.answers[task], strict=True)
    )
