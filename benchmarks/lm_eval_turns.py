"""Models of lm-evaluation-harness that take turns, task by task, each in a process of its own, and how their times
compare.

What runs in the process is `lm_eval_worker.py`; which models there are and what must be equal is `lm_eval_parity.py`.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE
from typing import Any

from lm_eval_runs import SETTINGS, TASKS, Answer, Run, Task

SCRIPT = Path(__file__).with_name("lm_eval_worker.py")
SUMS = ("scoring_s", "scoring_cpu_s", "evaluation_s", "tokens")


class Worker:
    """A process with one model. `speeds` has what each task took."""

    def __init__(self, python: Path, name: str, arguments: str, tasks: Path, batch_size: str) -> None:
        began = time.perf_counter()
        command = [str(python), str(SCRIPT), name, arguments, str(tasks), batch_size]
        environment = {**os.environ, **SETTINGS, "HF_DATASETS_CACHE": str(tasks / "datasets")}
        self._log = tasks / f"worker-{time.monotonic_ns()}.log"
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(command, env=environment, text=True, stdin=PIPE, stdout=PIPE, stderr=log)
        self._name = name
        self.load_s = float(self._line()["load_s"])
        # What is only done the first time. Of a rolling text no context is kept that a task could reuse.
        self.run_task(next(task for task in TASKS if task.rolling), 1)
        self.start_s = time.perf_counter() - began
        self._answers: dict[str, list[Answer]] = {}
        self._metrics: dict[str, dict[str, Any]] = {}
        self.speeds: dict[str, dict[str, float | None]] = {}

    def run_task(self, task: Task, limit: int | None = None) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([task.name, limit]) + "\n")
        self._process.stdin.flush()
        return self._line()

    def evaluate(self, task: Task) -> None:
        result = self.run_task(task)
        self._answers[task.name] = [Answer(*answer) for answer in result["answers"]]
        self._metrics[task.name] = result["metrics"]
        self.speeds[task.name] = {name: result[name] for name in SUMS}
        print(f"{self._name}: {task.name} {result['scoring_s']:.1f} s", file=sys.stderr, flush=True)

    def sum_of(self, name: str) -> float | None:
        values = [speed[name] for speed in self.speeds.values()]
        return None if None in values else sum(value for value in values if value is not None)

    def run(self) -> Run:
        evaluation, cpu = self.sum_of("evaluation_s"), self.sum_of("scoring_cpu_s")
        assert evaluation is not None
        assert cpu is not None
        return Run(self._metrics, self._answers, self.start_s + evaluation, evaluation, cpu)

    def _line(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._log.read_text(encoding="utf-8")[-4000:]
            sys.exit(f"the worker of {self._name} ended with status {self._process.wait()}:\n{said}")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def ratios(hf: Worker, other: Worker) -> dict[str, dict[str, float | None]]:
    """How many times hf's seconds, tokens and seconds per token a model has, by task and of all together."""
    tasks = {**{task: (hf.speeds[task], other.speeds[task]) for task in hf.speeds}, "all": (totals(hf), totals(other))}
    out = {}
    for task, (theirs, ours) in tasks.items():
        quotients = {name: quotient(theirs[name], ours[name]) for name in ("scoring_s", "scoring_cpu_s", "tokens")}
        out[task] = quotients | {"per_token": quotient(quotients["scoring_s"], quotients["tokens"])}
    return out


def totals(worker: Worker) -> dict[str, float | None]:
    return {name: worker.sum_of(name) for name in SUMS}


def quotient(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a / b
