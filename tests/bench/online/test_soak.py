"""The verdicts of a soak, and that every single answer of it is compared."""

import copy
from typing import Any

import numpy as np
import pytest

from onepass.bench.online.pool import ComparedWindow, Pool
from onepass.bench.online.requests import MixPart, Requests
from onepass.bench.online.soak import judge
from onepass.bench.workloads import Shape
from onepass.evidence.tolerance import Tolerance

LOAD: dict[str, Any] = {
    "wrong": 0, "answered": 100, "num_errors": 0, "errors": [], "statuses": {"200": 100}, "tokens_per_second": 1000.0,
    "memory": {"front_growth_per_minute": 1e5, "engine_growth_per_minute": 1e6}, "unloaded_ms": {"p99": 300.0},
    "small_ms": {"p99": 4000.0}, "longest_step_ms": 3000.0, "compilations": 0,
    "live_ms": {"p50": 1.0, "p99": 50.0, "max": 80.0}, "hostile": {"clients": 10, "unexpected": 0, "statuses": {}},
}  # fmt: skip
OVERLOAD: dict[str, Any] = {
    "wrong": 0, "answered": 50, "statuses": {"200": 50, "429": 150}, "without_retry_after": 0,
    "tokens_per_second": 900.0, "peak_tokens_per_second": 1000.0, "unloaded_ms": {"p50": 200.0},
    "recovered_ms": {"p50": 250.0},
}  # fmt: skip


def test_a_good_soak_holds_every_verdict() -> None:
    assert [verdict.holds for verdict in judge(10, LOAD, OVERLOAD)] == [True] * 11


@pytest.mark.parametrize(
    ("phase", "place", "value", "what"),
    [
        ("load", ("wrong",), 1, "no wrong answer"),
        ("overload", ("wrong",), 1, "no wrong answer"),
        ("load", ("statuses", "503"), 1, "no 5xx"),
        ("overload", ("statuses", "none"), 1, "no 5xx"),
        ("load", ("num_errors",), 2, "no other error"),
        ("load", ("live_ms", "p99"), 50.1, "p99 of /live"),
        ("load", ("hostile", "unexpected"), 1, "hostile clients"),
        ("load", ("compilations",), 1, "nothing compiled"),
        ("load", ("memory", "engine_growth_per_minute"), 2e7, "memory grows"),
        ("load", ("small_ms", "p99"), 4501.0, "p99 of small requests"),
        ("overload", ("statuses", "429"), 0, "overload is refused"),
        ("overload", ("without_retry_after",), 1, "overload is refused"),
        ("overload", ("tokens_per_second",), 799.0, "goodput"),
        ("overload", ("recovered_ms", "p50"), 401.0, "latency is back"),
    ],
)
def test_each_fault_fails_its_own_verdict(phase: str, place: tuple[str, ...], value: float, what: str) -> None:
    phases = {"load": copy.deepcopy(LOAD), "overload": copy.deepcopy(OVERLOAD)}
    inner: Any = phases[phase]
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    failed = [verdict.what for verdict in judge(10, **phases) if not verdict.holds]
    assert len(failed) == 1
    assert failed[0].startswith(what)


def test_memory_is_not_judged_in_a_short_run() -> None:
    load = copy.deepcopy(LOAD)
    load["memory"]["engine_growth_per_minute"] = 2e7
    (memory,) = [verdict for verdict in judge(1, load, OVERLOAD) if verdict.holds is None]
    assert memory.found == "+20.10 MB a minute; too short to judge"


def test_every_answer_is_compared_with_what_is_known() -> None:
    right = [[0.05]] * 100
    window = ComparedWindow(expected={3: np.array(right)}, tolerance=Tolerance(1e-2, 2e-3))
    window.see(3, [[0.059], *right[1:]])
    assert (window.wrong, window.num_errors) == (0, 0)
    one_is_off, all_are_a_little, one_is_missing = [[0.07], *right[1:]], [[0.053]] * 100, right[1:]
    for wrong, scores in enumerate((one_is_off, all_are_a_little, one_is_missing), start=1):
        window.see(3, scores)
        assert (window.wrong, window.num_errors) == (wrong, wrong)
    assert window.errors[0] == "request 3: scores differ from the library's by 2.0e-02"


def test_a_sharp_label_may_move_as_far_as_its_logit_does() -> None:
    """0.1 of a logit moves 0.5 by 0.025, and 0.1 by 0.009; the tolerance is for the latter."""
    window = ComparedWindow(expected={3: np.array([[0.5, 0.5]])}, tolerance=Tolerance(1e-2, 2e-3))
    window.see(3, [[0.52, 0.48]])
    assert window.wrong == 0
    window.see(3, [[0.54, 0.46]])
    assert window.wrong == 1


def test_a_pool_gives_its_requests_again_and_only_those_asked_for() -> None:
    mix = (MixPart("small", Shape(4, 2, 3, 3)), MixPart("large", Shape(4, 9, 3, 3)))
    prepared = [Requests(mix, 600).prepare(number) for number in range(20)]
    taken = [Pool(prepared, seed=1).take() for _ in range(3)]
    assert taken[0] == taken[1] == taken[2], "seeded"
    pool = Pool(prepared, "large")
    assert {pool.take().num_items for _ in range(50)} == {9}
