"""A program may end without closing its scorer, also with requests under way: its exit status is its own. And nothing
of JAX's waits for Python's lock when a scorer has been closed."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.tiny import ITEMS, QUERY, Tiny
from onepass.engine.engine import Engine
from onepass.engine.parts import EngineParts
from onepass.engine.runner import StepOutput
from onepass.engine.scheduling.scheduler import Scheduler
from onepass.errors import OnepassError
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


class HeldSteps:
    """A runner's steps, the first of which waits until it may go on."""

    def __init__(self, scorer: Scorer, monkeypatch: pytest.MonkeyPatch) -> None:
        self._run, self.count = scorer.engine.runner.run, 0
        self.first_began, self.may_go_on = threading.Event(), threading.Event()
        monkeypatch.setattr(scorer.engine.runner, "run", self)

    def __call__(self, *given: Any) -> StepOutput:
        self.count += 1
        self.first_began.set()
        assert self.may_go_on.wait(60)
        return self._run(*given)


def own_scorer(tiny: Tiny) -> Scorer:
    """Not one that other tests use: it is closed."""
    return Scorer(tiny.model, tiny.weights, tiny.scorer().engine.config)


def test_an_interrupted_block_computes_nothing_more(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = own_scorer(tiny)
    requests = [tiny.request(QUERY, ITEMS, mode="serial") for _ in range(5)]
    steps = HeldSteps(scorer, monkeypatch)
    futures = []

    def interrupted() -> None:
        with scorer:
            futures.extend(map(scorer.submit, requests))
            assert steps.first_began.wait(60)
            threading.Timer(0.2, steps.may_go_on.set).start()  # the device is busy while the block ends
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert steps.count < len(ITEMS), "serial mode takes a step per item"
    assert all(isinstance(future.exception(0), OnepassError) for future in futures)


def test_a_caller_that_is_interrupted_leaves_nothing_to_compute(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = own_scorer(tiny)
    requests = [tiny.request(QUERY, items, mode="serial") for items in (ITEMS[:1], ITEMS * 50)]

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt  # while it waits, as Ctrl-C does

    steps = HeldSteps(scorer, monkeypatch)
    steps.may_go_on.set()
    monkeypatch.setattr(scorer.engine, "_result", interrupt)
    with pytest.raises(KeyboardInterrupt):
        scorer.score_many(requests)
    scorer.close()
    assert steps.count < 50 * len(ITEMS), "the second request is given up"


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
        logits, total = ([np.asarray(a).view(Asked) for a in some] for some in (output.logits, [output.vocabulary]))
        return StepOutput(logits, total[0])  # type: ignore[arg-type]

    monkeypatch.setattr(engine.runner, "run", run_asked)
    old = engine._scheduler
    parts = (old._ladder, old.stats._cost, engine.contexts, engine.pages, engine.runner)
    scheduler = Scheduler(*parts, copies_early=early, computed_tokens=old.stats._computed_tokens)
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
