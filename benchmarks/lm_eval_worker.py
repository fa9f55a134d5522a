"""One model of lm-evaluation-harness in a process: loaded once, it evaluates the tasks that it is asked for.

    python lm_eval_worker.py hf pretrained=FOLDER,dtype=float32 TASKS_FOLDER BATCH_SIZE

A line of stdin is a task's name and how many documents, a line of stdout what came of it, as JSON; the first line says
that the model is loaded. Seconds of *scoring* are those within the model's answers to the harness; *evaluation* is all
that the harness does for a task. Runs in either of its environments, with Python 3.11 too. Who asks is
`lm_eval_turns.py`.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager

LIKELIHOODS = ("loglikelihood", "loglikelihood_rolling")


class Meter:
    """Times a model's answers, and counts the tokens that it computes, padding included."""

    def __init__(self, lm: LM) -> None:
        self.seconds = self.cpu_seconds = 0.0
        for name in LIKELIHOODS:
            setattr(lm, name, self._timed(getattr(lm, name)))
        self.count_tokens = counter(lm)

    def _timed(self, answer: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **options: Any) -> Any:
            began, cpu = time.perf_counter(), cpu_s()
            try:
                return answer(*given, **options)
            finally:
                self.seconds += time.perf_counter() - began
                self.cpu_seconds += cpu_s() - cpu

        return timed


def counter(lm: LM) -> Callable[[], int | None]:
    """How many tokens the model in this process has computed so far; None of one behind HTTP."""
    backend = getattr(lm, "_backend", None)
    if backend is not None:
        return lambda: int(backend.scorer.engine.totals.tokens)
    network = getattr(lm, "model", None)
    if not hasattr(network, "register_forward_pre_hook"):
        return lambda: None
    counts = [0]

    def add(_: Any, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        counts[0] += (given[0] if given else options["input_ids"]).numel()

    network.register_forward_pre_hook(add, with_kwargs=True)
    return lambda: counts[0]


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def load(name: str, arguments: str, batch_size: str) -> LM:
    if name == "onepass":
        import onepass.integrations.lm_eval  # noqa: F401  (registers the model)
    options = {"batch_size": int(batch_size), **({"device": "cpu"} if name == "hf" else {})}
    return get_model(name).create_from_arg_string(arguments, options)


def evaluate(lm: LM, meter: Meter, manager: TaskManager, task: str, limit: int | None = None) -> dict[str, Any]:
    tokens, seconds, cpu = meter.count_tokens(), meter.seconds, meter.cpu_seconds
    began = time.perf_counter()
    results = simple_evaluate(model=lm, tasks=[task], task_manager=manager, limit=limit, bootstrap_iters=0)
    computed = meter.count_tokens()
    return {
        "evaluation_s": time.perf_counter() - began,
        "scoring_s": meter.seconds - seconds,
        "scoring_cpu_s": meter.cpu_seconds - cpu,
        "tokens": None if computed is None or tokens is None else computed - tokens,
        "metrics": {name: value for name, value in results["results"][task].items() if isinstance(value, float)},
        "answers": [
            answer
            for sample in sorted(results["samples"][task], key=lambda sample: int(sample["doc_id"]))
            for answer in answers(sample)
        ],
    }


def answers(sample: dict[str, Any]) -> list[tuple[str, float, bool | None]]:
    """Text, log-likelihood and whether it is greedy, which rolling ones do not say."""
    out = []
    for arguments, (response,) in zip(sample["arguments"], sample["resps"], strict=True):
        logprob, greedy = response if isinstance(response, tuple) else (response, None)
        out.append((arguments[-1], float(logprob), None if greedy is None else bool(greedy)))
    return out


def own_stdout() -> TextIO:
    """The pipe to the parent; what others print goes to stderr."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return pipe


def main() -> None:
    name, arguments, folder, batch_size = sys.argv[1:]
    out = own_stdout()
    began = time.perf_counter()
    lm = load(name, arguments, batch_size)
    loaded = time.perf_counter() - began
    meter, manager = Meter(lm), TaskManager(include_path=folder, include_defaults=False)
    print(json.dumps({"load_s": loaded}), file=out)
    for line in sys.stdin:
        task, limit = json.loads(line)
        print(json.dumps(evaluate(lm, meter, manager, task, limit)), file=out)


if __name__ == "__main__":
    main()
