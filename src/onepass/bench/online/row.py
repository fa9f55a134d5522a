"""A row of a benchmark over HTTP: the keys of the engine's rows, and what only a driver can tell.

Any 5xx, a connection that broke, a compilation or a restart in the window, or a wrong score voids it. A 429 is counted
in an open loop; in a closed one it is an error, unless overload was asked for.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onepass.bench.online.check import CheckResult
from onepass.bench.online.requests import RequestStream
from onepass.bench.online.target import COMPILATIONS, Counts
from onepass.bench.online.window import TIMINGS, Window
from onepass.bench.row import FEWEST_REPEATS, Row, compared, latencies, latencies_by_part, some_times
from onepass.evidence.tolerance import Tolerance

BUSY_CLIENT = 0.8  # of a core: above, the driver may be what was measured
LATE_CLIENT_MS = 10.0


@dataclass(frozen=True)
class HttpRow(Row):
    """`num_items`, `tokens` and `repeats` are of all requests answered in the window. `split_ms` are medians of the
    server's own times; `http` is what is left of the latency: network, parsing, and waiting to be read."""

    statuses: dict[str, int] = field(default_factory=dict)  # "none": no answer came
    offered_per_second: float | None = None  # open loop: requests due
    overloaded: int = 0  # 429s
    client_cpu: float = 0.0  # of one core
    lag_ms: dict[str, float] = field(default_factory=dict)  # how late requests left, open loop
    cached_tokens: int = 0
    modes: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    limit_ms: float | None = None  # of a ramp's p99
    steps: list[dict[str, Any]] = field(default_factory=list)  # of a ramp


@dataclass(frozen=True)
class Criteria:
    """What a window is judged with."""

    requests: RequestStream
    checksum: str
    dtype: str
    tolerance: Tolerance
    overload: bool = False


def http_row(mode: str, window: Window, before: Counts, after: Counts, checked: CheckResult, by: Criteria) -> HttpRow:
    compiled, restarts = after.compilations - before.compilations, after.restarts - before.restarts
    void = why_void(window, compiled, restarts, checked, by)
    facts = _speed(window) if window.scored else {}
    return HttpRow(
        mode=mode,
        workload=by.requests.name,
        items_per_second=facts.pop("items_per_second", None),
        dtype=by.dtype,
        purpose="modes",
        sweep={},
        options={},
        checksum=by.checksum,
        num_items=window.items,
        tokens=sum(one.tokens for one in window.scored),
        repeats=len(window.scored),
        compilations=max(0, compiled),
        errors=window.errors,
        num_errors=window.num_errors,
        void=void,
        notes=_notes(window),
        requests=window.sent,
        statuses={str(status or "none"): count for status, count in sorted(window.statuses.items())},
        offered_per_second=window.rate,
        achieved_per_second=len(window.scored) / max(window.seconds, 1e-9),
        overloaded=window.statuses[429],
        window_seconds=window.seconds,
        client_cpu=window.client_cpu,
        lag_ms=latencies(window.lags) if window.lags else {},
        cached_tokens=sum(one.cached_tokens for one in window.scored),
        restarts=restarts,
        **compared(checked.differences, by.tolerance),
        **facts,
    )


def why_void(window: Window, compiled: int, restarts: int, checked: CheckResult, by: Criteria) -> list[str]:
    reasons = [f"error: {error}" for error in window.errors[:3]]
    if window.num_errors > 3:
        reasons.append(f"errors: {window.num_errors} of {window.sent} requests failed")
    refused = window.statuses[429]
    if refused and window.clients is not None and not by.overload:
        reasons.append(
            f"error: {refused} of {window.sent} requests were refused with status 429 (--overload allows it)"
        )
    if restarts:
        reasons.append(f"the engine was started again {restarts} times in the window")
    if compiled:
        reasons.append(f"compiled in the timed window: {compiled} programs by {COMPILATIONS}")
    if not window.scored:
        reasons.append(f"none of {window.sent} requests was answered with scores")
    if checked.differences is None and window.scored:
        reasons.append(checked.problem or "no score was compared with the serial reference")
    return reasons if checked.differences is None else [*reasons, *checked.differences.why_void(by.tolerance)]


def _speed(window: Window) -> dict[str, Any]:
    seconds, items = max(window.seconds, 1e-9), window.items
    times = latencies(window.latencies)
    medians = {name: float(np.median([one.timings[name] for one in window.scored])) for name in TIMINGS}
    outside = float(np.median([max(0.0, 1e3 * one.seconds - one.timings["total_ms"]) for one in window.scored]))
    modes = [one.mode for one in window.scored]
    return {
        "items_per_second": items / seconds,
        "tokens_per_second": sum(one.tokens for one in window.scored) / seconds,
        "latency_ms": times,
        "request_ms": times["p50"],
        "latency_per_item_ms": 1e3 * seconds / items if items else None,
        "times_ms": some_times(window.latencies),
        "split_ms": {name.removesuffix("_ms"): medians[name] for name in TIMINGS[:3]} | {"http": outside},
        "modes": {mode: modes.count(mode) for mode in sorted(set(modes))},
        "ran_as": max(set(modes), key=modes.count),
        "parts": latencies_by_part((one.part, one.seconds) for one in window.scored),
    }


def _notes(window: Window) -> list[str]:
    notes, answered = [], len(window.scored)
    if answered < FEWEST_REPEATS:
        notes.append(f"only {answered} timed calls; a figure to keep needs {FEWEST_REPEATS}")
    elif answered < 100:
        notes.append(f"p99 of {answered} requests is nearly the slowest of them")
    if window.client_cpu > BUSY_CLIENT:
        notes.append(f"the driver was busy for {window.client_cpu:.0%} of a core: it may be what was measured")
    if window.lags and (late := latencies(window.lags)["p99"]) > LATE_CLIENT_MS:
        notes.append(f"p99 of how late requests left is {late:.0f} ms: the driver or its machine was busy")
    if window.made_late:
        notes.append(f"{window.made_late} requests were made within the window")
    return notes
