"""A row of the report: one mode on one workload, with everything a reader needs to trust it, or the reasons not to.

A row with a compilation in its window, an error, or a score out of tolerance is void and says so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onepass.bench.ceilings import Ceilings
from onepass.bench.offline.cases import Case
from onepass.bench.offline.measure import Measurement, numbers
from onepass.bench.offline.reference import SerialSample
from onepass.bench.roofline import Utilization, Work, reached
from onepass.bench.workloads import Workload
from onepass.evidence.tolerance import Tolerance, fair_gaps

FEWEST_REPEATS = 10
MOST_TIMES = 1000  # of single requests in a document


@dataclass(frozen=True)
class Setting:
    """What all rows of one dtype share."""

    dtype: str
    ceilings: Ceilings
    tolerance: Tolerance
    among_labels: bool


@dataclass(frozen=True)
class Row:
    mode: str
    workload: str
    items_per_second: float | None
    dtype: str
    purpose: str
    sweep: dict[str, int]
    options: dict[str, int]
    checksum: str
    num_items: int
    tokens: int
    repeats: int
    in_flight: int = 1
    latency_ms: dict[str, float] = field(default_factory=dict)  # of a request: median, p95, p99, min, max
    request_ms: float | None = None  # of the whole workload: the median; of requests in flight, the mean
    latency_per_item_ms: float | None = None
    tokens_per_second: float | None = None
    times_ms: list[float] = field(default_factory=list)
    sampled_items: int | None = None  # serial: so many items were timed, and the rest is multiplication
    speedup_over_serial: float | None = None
    flops_needed: float = 0.0
    bytes_needed: float = 0.0
    reached: dict[str, float] = field(default_factory=dict)
    padding_ratio: float | None = None
    split_ms: dict[str, float] = field(default_factory=dict)  # medians: encode, device, other host time
    peak_memory_bytes: int = 0
    peak_memory_kind: str = ""
    compilations: int = 0
    backend_compilations: int = 0
    errors: list[str] = field(default_factory=list)
    max_difference: float | None = None
    mean_difference: float | None = None
    tolerance: dict[str, float] = field(default_factory=dict)
    checked_items: int = 0
    ran_as: str | None = None
    reason: str | None = None
    void: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # Of traffic that was sent for a while, to a scorer or a server.
    requests: int = 0
    achieved_per_second: float = 0.0  # requests answered with scores
    window_seconds: float = 0.0
    num_errors: int = 0
    parts: dict[str, dict[str, float]] = field(default_factory=dict)  # latencies by kind or size, in a mix
    over_small: float | None = None  # tokens/s over those of workload `small` alone in the same run

    @property
    def sound(self) -> bool:
        return not self.void

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Differences:
    """`most` and `mean` are judged. Of labels that nobody chose they are `fair_gaps`, and `raw` are as they came."""

    most: float
    mean: float
    items: int
    raw: tuple[float, float] | None = None

    @classmethod
    def of_drawn_labels(cls, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> "Differences":
        """From what came and what was wanted, [items, numbers] each."""
        fair = np.concatenate([fair_gaps(got, wanted).ravel() for got, wanted in pairs])
        raw = np.concatenate([np.abs(got - wanted).ravel() for got, wanted in pairs])
        items = sum(len(wanted) for _, wanted in pairs)
        return cls(float(fair.max()), float(fair.mean()), items, (float(raw.max()), float(raw.mean())))

    @property
    def shown(self) -> tuple[float, float]:
        """Largest and mean, for reports."""
        return self.raw or (self.most, self.mean)


def compare_scores(timed: Measurement, serial: SerialSample, among_labels: bool) -> Differences | None:
    """Sampled items of every timed call against the reference; None where nothing was timed."""
    if not timed.results or not len(serial.scores):
        return None
    gaps = [
        np.abs(np.stack([numbers(results[r], among_labels)[i] for r, i in serial.places]) - serial.scores)
        for results in timed.results
    ]
    # NaN compares as out of tolerance: it is carried on, not dropped.
    return Differences(float(np.max(gaps)), float(np.mean(gaps)), len(serial.places))


def why_void(timed: Measurement, found: Differences | None, tolerance: Tolerance) -> list[str]:
    reasons = [f"error: {error}" for error in timed.errors]
    if timed.engine_compilations or timed.backend_compilations:
        reasons.append(
            f"compiled in the timed window: {timed.engine_compilations} programs of the engine, "
            f"{timed.backend_compilations} of JAX"
        )
    if found is None and not timed.errors:
        reasons.append("no score was compared with the serial reference")
    if found is not None and not (found.most <= tolerance.most and found.mean <= tolerance.mean):
        reasons.append(
            f"scores differ from serial by {found.most:.1e} (mean {found.mean:.1e}); "
            f"allowed are {tolerance.most:.0e} (mean {tolerance.mean:.0e})"
        )
    return reasons


def row_of(
    case: Case, workload: Workload, timed: Measurement, serial: SerialSample, work: Work, setting: Setting
) -> Row:
    found = compare_scores(timed, serial, setting.among_labels)
    results = [result for results in timed.results for result in results]
    facts: dict[str, Any] = {}
    if timed.rounds and not timed.errors:
        facts = _speed(workload, timed.seconds, work, setting)
        facts["latency_ms"] = latencies(timed.calls)
        facts["times_ms"] = [round(1e3 * t, 4) for t in timed.calls]
        facts["split_ms"] = _split(timed)
        facts["padding_ratio"] = float(np.mean([result.timings.padding_ratio for result in results]))
        facts["ran_as"], facts["reason"] = results[-1].mode, results[-1].reason
        if serial.seconds:
            facts["speedup_over_serial"] = serial.seconds_per_item * facts["items_per_second"]
    void = [*why_void(timed, found, setting.tolerance), *_contexts_computed_again(workload, timed)]
    return _row(case, workload, timed, setting, work, found, void, facts)


def _contexts_computed_again(workload: Workload, timed: Measurement) -> list[str]:
    """A workload whose contexts are kept says nothing where they were not."""
    if not workload.cached:
        return []
    lengths = [len(one.query) for one in workload.asked]
    calls = [(result, length) for round in timed.results for result, length in zip(round, lengths, strict=True)]
    again = sum(result.usage.cached_tokens < length for result, length in calls)
    return [f"{again} of {len(calls)} calls computed a context that was to be kept"] if again else []


def serial_row(case: Case, workload: Workload, serial: SerialSample, work: Work, setting: Setting) -> Row:
    """The reference's own row: a sample is timed, one item a call, and the request's time is so many times that."""
    timed = serial.timed
    facts: dict[str, Any] = {}
    found = None
    if serial.seconds:
        facts = _speed(workload, serial.seconds_per_item * workload.num_items, work, setting)
        facts["latency_ms"] = {
            name: value * workload.num_items / len(workload.asked) for name, value in latencies(serial.seconds).items()
        }
        facts["times_ms"] = [round(1e3 * t, 4) for t in serial.seconds]
        facts["split_ms"] = _split(timed)
        facts["speedup_over_serial"] = 1.0
        facts["sampled_items"] = len(serial.seconds)
        facts["ran_as"] = "serial"
        facts["notes"] = [f"{len(serial.seconds)} of {workload.num_items} items timed, one a call; times are scaled"]
        found = Differences(0.0, 0.0, len(serial.seconds))  # it is the reference
    return _row(case, workload, timed, setting, work, found, why_void(timed, found, setting.tolerance), facts)


def _row(
    case: Case,
    workload: Workload,
    timed: Measurement,
    setting: Setting,
    work: Work,
    found: Differences | None,
    void: list[str],
    facts: dict[str, Any],
) -> Row:
    repeats = len(facts.get("times_ms", ())) if case.way.name == "serial" else len(timed.rounds)
    notes = facts.pop("notes", [])
    if timed.in_flight:
        notes = [*notes, "requests kept in flight, each sent again when answered; the rate is over all of the time"]
    if repeats < FEWEST_REPEATS:
        notes = [*notes, f"only {repeats} timed calls; a figure to keep needs {FEWEST_REPEATS}"]
    return Row(
        mode=case.way.name,
        workload=workload.name,
        items_per_second=facts.pop("items_per_second", None),
        dtype=setting.dtype,
        purpose=case.purpose,
        sweep=case.sweep,
        options=case.way.changed,
        checksum=workload.checksum,
        num_items=workload.num_items,
        tokens=workload.tokens,
        repeats=repeats,
        in_flight=workload.in_flight,
        flops_needed=work.flops,
        bytes_needed=work.bytes,
        peak_memory_bytes=timed.peak.bytes if timed.peak else 0,
        peak_memory_kind=timed.peak.kind if timed.peak else "",
        compilations=timed.engine_compilations,
        backend_compilations=timed.backend_compilations,
        errors=timed.errors,
        max_difference=finite(found.most) if found else None,
        mean_difference=finite(found.mean) if found else None,
        tolerance={"max": setting.tolerance.most, "mean": setting.tolerance.mean},
        checked_items=found.items if found else 0,
        void=void,
        notes=notes,
        **facts,
    )


def finite(value: float) -> float | None:
    """NaN is not JSON; the reason the row is void still names it."""
    return value if np.isfinite(value) else None


def _speed(workload: Workload, seconds: float, work: Work, setting: Setting) -> dict[str, Any]:
    rates: Utilization = reached(work, seconds, setting.ceilings)
    return {
        "items_per_second": workload.num_items / seconds,
        "tokens_per_second": workload.tokens / seconds,
        "request_ms": 1e3 * seconds,
        "latency_per_item_ms": 1e3 * seconds / workload.num_items,
        "reached": dict(vars(rates)),
    }


def latencies(seconds: list[float]) -> dict[str, float]:
    p50, p95, p99 = (1e3 * float(np.percentile(seconds, q)) for q in (50, 95, 99))
    return {"p50": p50, "p95": p95, "p99": p99, "min": 1e3 * min(seconds), "max": 1e3 * max(seconds)}


def latencies_by_part(answered: Iterable[tuple[str, float]]) -> dict[str, dict[str, float]]:
    """Small requests must not hide behind large ones: in a mix, each kind or size has its own latencies."""
    found: dict[str, list[float]] = {}
    for part, seconds in answered:
        found.setdefault(part, []).append(seconds)
    return {part: {**latencies(times), "requests": len(times)} for part, times in sorted(found.items())}


def some_times(seconds: Sequence[float]) -> list[float]:
    """Milliseconds; beyond MOST_TIMES, every so-manieth in order of time."""
    places = np.unique(np.linspace(0, len(seconds) - 1, min(len(seconds), MOST_TIMES)).round().astype(int))
    return [round(1e3 * seconds[place], 4) for place in places]


def _split(timed: Measurement) -> dict[str, float]:
    """Medians of the engine's own times; what is neither encoding nor the device is the host's."""
    every = [(result.timings, 1e3 * t) for result, t in zip(_flat(timed), timed.calls, strict=False)]
    if not every:
        return {}
    encode = float(np.median([t.encode_ms for t, _ in every]))
    device = float(np.median([t.device_ms for t, _ in every]))
    host = float(np.median([max(0.0, whole - t.encode_ms - t.device_ms) for t, whole in every]))
    return {"encode": encode, "device": device, "host": host}


def _flat(timed: Measurement) -> list[Any]:
    return [result for results in timed.results for result in results]
