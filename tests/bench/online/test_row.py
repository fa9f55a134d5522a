"""What voids a row over HTTP and what is only told, from windows that are made up; real ones are `test_run`."""

from typing import Any

import pytest

from onepass.bench.online.check import CheckResult
from onepass.bench.online.requests import MixPart, Requests
from onepass.bench.online.row import Criteria, HttpRow, http_row
from onepass.bench.online.target import Counts
from onepass.bench.online.window import TIMINGS, ScoredRequest, Window
from onepass.bench.row import Differences
from onepass.bench.workloads import Shape
from onepass.evidence.tolerance import BETWEEN_MODES

REQUESTS = Requests((MixPart("tiny", Shape(4, 2, 3, 3)),), 600)
BEFORE = Counts(7, 1)
RIGHT = CheckResult(Differences(1e-7, 1e-8, 4))


def window(answered: int = 20, refused: int = 0, **changes: Any) -> Window:
    made = Window(**{"clients": 2, "seconds": 2.0, "client_cpu": 0.1, **changes})
    made.sent = answered + refused
    made.statuses.update({200: answered, 429: refused})
    timings = dict.fromkeys(TIMINGS, 5.0)
    made.scored = [ScoredRequest(n, "tiny", 2, 10, 0, 0.01 * (n + 1), "extend", timings) for n in range(answered)]
    return made


def row(made: Window, after: Counts = BEFORE, checked: CheckResult = RIGHT, overload: bool = False) -> HttpRow:
    by = Criteria(REQUESTS, "aa", "float32", BETWEEN_MODES["float32"], overload)
    return http_row("http-closed-2", made, BEFORE, after, checked, by)


def test_a_sound_row_counts_what_was_answered() -> None:
    found = row(window())
    assert found.void == []
    assert (found.items_per_second, found.tokens_per_second, found.achieved_per_second) == (20.0, 100.0, 10.0)
    assert (found.num_items, found.repeats, found.requests) == (40, 20, 20)
    assert found.latency_ms["p50"] == pytest.approx(105.0)
    assert found.split_ms == {"queue": 5.0, "encode": 5.0, "device": 5.0, "http": pytest.approx(100.0)}
    assert found.statuses == {"200": 20, "429": 0}


def test_refusals_void_a_closed_loop_only_and_not_when_overload_is_meant() -> None:
    assert row(window(refused=3)).void == [
        "error: 3 of 23 requests were refused with status 429 (--overload allows it)"
    ]
    assert row(window(refused=3), overload=True).void == []
    open_loop = row(window(refused=3, clients=None, rate=12.0))
    assert (open_loop.void, open_loop.overloaded, open_loop.offered_per_second) == ([], 3, 12.0)


@pytest.mark.parametrize(
    ("after", "checked", "reason"),
    [
        (Counts(9, 1), RIGHT, "compiled in the timed window: 2 programs"),
        (Counts(3, 2), RIGHT, "the engine was started again 1 times"),
        (BEFORE, CheckResult(Differences(1e-3, 1e-4, 4)), "scores differ from serial by 1.0e-03"),
        (BEFORE, CheckResult(Differences(float("nan"), float("nan"), 4)), "scores differ from serial by nan"),
        (BEFORE, CheckResult(None), "no score was compared"),
        (BEFORE, CheckResult(None, "the serial check had no answer: refused"), "the serial check had no answer"),
    ],
)
def test_what_happened_around_the_window_voids_it(after: Counts, checked: CheckResult, reason: str) -> None:
    assert row(window(), after, checked).void[0].startswith(reason)


def test_failed_requests_void_the_row_and_are_counted() -> None:
    made = window()
    for _ in range(5):
        made.sent += 1
        made.no_answer(ConnectionResetError("reset"))
    found = row(made)
    assert found.void == ["error: transport: reset"] * 3 + ["errors: 5 of 25 requests failed"]
    assert found.statuses["none"] == 5


def test_a_window_without_answers_is_void_and_has_no_speed() -> None:
    found = row(window(answered=0, refused=4, clients=None), checked=CheckResult(None))
    assert found.void == ["none of 4 requests was answered with scores"]
    assert found.items_per_second is None


def test_a_busy_driver_and_few_answers_are_noted() -> None:
    assert row(window(answered=4)).notes == ["only 4 timed calls; a figure to keep needs 10"]
    notes = row(window(client_cpu=0.95, lags=[0.5], made_late=3)).notes
    assert notes[0] == "p99 of 20 requests is nearly the slowest of them"
    assert "busy for 95% of a core" in notes[1]
    assert notes[2].startswith("p99 of how late requests left is 500 ms")
    assert notes[3] == "3 requests were made within the window"


def test_a_document_holds_a_thousand_times_at_most() -> None:
    times = row(window(answered=5000)).times_ms
    assert len(times) == 1000
    assert (times[0], times[-1]) == (10.0, 50_000.0)
