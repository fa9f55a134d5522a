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
from onepass.engine.lowering import Program
from onepass.engine.runner import Computed
from onepass.engine.steps import Stepper
from onepass.engine.work import Work

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


@pytest.mark.parametrize(
    ("platform", "told", "early"),
    [("cpu", False, False), ("gpu", False, True), ("gpu", True, False), ("tpu", False, True)],
)
def test_results_on_the_cpu_are_not_asked_for_early(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, platform: str, told: bool, early: bool
) -> None:
    """There JAX's thread would take Python's lock when a result is there, and a process that has ended by then is
    aborted: 4 of 36 runs of examples/rank.py on a busy machine. Nor are they where programs tell the host."""
    engine = tiny.scorer().engine
    run = engine.runner.run
    monkeypatch.setattr(engine.runner.lowering, "tells_host", told)

    def run_asked(program: Program, *rest: Any) -> Computed:
        done = run(program, *rest)
        asked = [None if a is None else np.asarray(a).view(Asked) for a in (done.logits, done.logsumexp)]
        return Computed(*asked, done.kept)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.runner, "run", run_asked)
    planner = replace(engine.planner, device=replace(engine.planner.device, platform=platform))
    steps = Stepper(engine.config, Work(tiny.model.config, 4), engine.contexts, engine.runner, planner)
    job = engine._job(tiny.request(QUERY, ITEMS, mode="packed"))
    steps.admit(job)
    launched = steps.launch()
    assert (launched is None) == early
    assert isinstance(job.future.exception(0), AskedEarly) if early else not job.future.done()
