"""A program may end without closing its scorer, also with requests under way: its exit status is its own. And nothing
of JAX's waits for Python's lock when a scorer has been closed."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.tiny import ITEMS, QUERY, Tiny
from onepass.engine.engine import Engine, EngineParts
from onepass.engine.runner import StepOutput
from onepass.engine.scheduler import Scheduler
from onepass.scorer import Scorer

PROGRAM = """
import sys
from onepass import Scorer
from onepass.api import ScoreRequest

scorer = Scorer.load(sys.argv[1], dtype="float32")
items = [[n, n + 1] for n in range(40)]
request = ScoreRequest(query=list(range(60)), items=items, label_token_ids=[1, 2], mode="serial")
scorer.score_many([request])
waiting = [scorer.submit(request) for _ in range(int(sys.argv[2]))]
print("ends")
"""


@pytest.mark.parametrize("waiting", [0, 50])
def test_a_program_that_closes_nothing_ends_well(checkpoint: Callable[[str], Path], waiting: int) -> None:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(checkpoint("qwen3")), str(waiting)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr
    assert "terminate" not in done.stderr
    assert time.monotonic() - start < 100, "what nobody waits for is not computed"


class AskedEarly(Exception):
    pass


class Asked(np.ndarray[Any, Any]):
    """A result that says so when its copy to the host is asked for before it is there."""

    def copy_to_host_async(self) -> None:
        raise AskedEarly


@pytest.mark.parametrize("early", [False, True])
def test_results_are_not_asked_for_early_where_nobody_says_so(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    engine = tiny.scorer().engine
    run = engine.runner.run

    def run_asked(*given: Any) -> StepOutput:
        output = run(*given)
        logits, total = ([np.asarray(a).view(Asked) for a in some] for some in (output.logits, [output.logsumexp]))
        return StepOutput(logits, total[0])  # type: ignore[arg-type]

    monkeypatch.setattr(engine.runner, "run", run_asked)
    old = engine._scheduler
    parts = (old._ladder, old._cost, engine.contexts, engine.pages, engine.runner)
    scheduler = Scheduler(*parts, copies_early=early, computed_tokens=old._computed_tokens)
    job = engine._job(tiny.request(QUERY, ITEMS, mode="packed"))
    scheduler.admit(job)
    launched = scheduler.launch()
    assert (launched is None) == early
    assert isinstance(job.future.exception(0), AskedEarly) if early else not job.future.done()
    if launched is not None:
        scheduler.collect(launched)
    scheduler.finished()


@pytest.mark.parametrize(("platform", "early"), [("cpu", False), ("gpu", False), ("tpu", True)])
def test_results_on_the_cpu_are_not_asked_for_early(tiny: Tiny, platform: str, early: bool) -> None:
    """There JAX's thread would take Python's lock when a result is there, and a process that has ended by then is
    aborted: 4 of 36 runs of examples/rank.py on a busy machine. Nor are they on one GPU, where programs write to the
    host themselves."""
    scorer: Scorer = tiny.scorer()
    old = scorer.engine
    builder = old.runner.builder
    parts = EngineParts(
        old.model.config, builder.weights, old.config, replace(old.device, platform=platform),
        builder.network.attention, builder.network.ops,
    )  # fmt: skip
    assert Engine(old.model, parts)._scheduler._copies_early == early
