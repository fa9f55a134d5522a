"""Rows of modes that were timed in this process on one workload: rates, latencies, distance from the reference.

What a row holds is `bench.row`; timing is `measure`.
"""

from typing import Any

import numpy as np

from onepass.bench.offline.cases import Case
from onepass.bench.offline.measure import Measurement, numbers, probabilities
from onepass.bench.offline.reference import SerialSample
from onepass.bench.roofline import Utilization, Work, reached
from onepass.bench.row import FEWEST_REPEATS, Differences, Row, Setting, compared, counted, latencies
from onepass.bench.workloads import Workload
from onepass.evidence.drift import Drift, among_labels
from onepass.evidence.tolerance import Tolerance


def compare_scores(timed: Measurement, serial: SerialSample, with_softmax: bool) -> Differences | None:
    """Sampled items of every timed call against the reference; None where nothing was timed."""
    if not timed.results or not len(serial.scores):
        return None
    gaps = [
        np.abs(np.stack([numbers(results[r], with_softmax)[i] for r, i in serial.places]) - serial.scores)
        for results in timed.results
    ]
    # NaN compares as out of tolerance: it is carried on, not dropped.
    return Differences(float(np.max(gaps)), float(np.mean(gaps)), len(serial.places))


def drift_of(timed: Measurement, every_item: np.ndarray) -> dict[str, float | None]:
    """The last timed call's scores among the labels against those of the same model unquantized."""
    if not timed.results:
        return {}
    scores = np.concatenate([probabilities(result) for result in timed.results[-1]])
    if scores.shape != every_item.shape or not np.isfinite(scores).all():
        return {}  # the row is void, and says so
    return Drift.between(among_labels(every_item), among_labels(scores)).to_dict()


def why_void(timed: Measurement, differences: Differences | None, tolerance: Tolerance) -> list[str]:
    reasons = [f"error: {error}" for error in timed.errors]
    if timed.engine_compilations or timed.backend_compilations:
        reasons.append(
            f"compiled in the timed window: {timed.engine_compilations} programs of the engine, "
            f"{timed.backend_compilations} of JAX"
        )
    if differences is None and not timed.errors:
        reasons.append("no score was compared with the serial reference")
    return reasons if differences is None else [*reasons, *differences.why_void(tolerance)]


def row_of(
    case: Case, workload: Workload, timed: Measurement, serial: SerialSample, work: Work, setting: Setting
) -> Row:
    differences = compare_scores(timed, serial, setting.among_labels)
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
    void = [*why_void(timed, differences, setting.tolerance), *_contexts_computed_again(workload, timed)]
    return _row(case, workload, timed, setting, work, differences, void, facts)


def _contexts_computed_again(workload: Workload, timed: Measurement) -> list[str]:
    """A workload whose contexts are kept says nothing where they were not."""
    if not workload.cached:
        return []
    lengths = [len(one.query) for one in workload.requests]
    calls = [(result, length) for round in timed.results for result, length in zip(round, lengths, strict=True)]
    again = sum(result.usage.cached_tokens < length for result, length in calls)
    return [f"{again} of {len(calls)} calls computed a context that was to be kept"] if again else []


def serial_row(case: Case, workload: Workload, serial: SerialSample, work: Work, setting: Setting) -> Row:
    """The reference's own row: a sample is timed, one item a call, and the request's time is so many times that."""
    timed = serial.timed
    facts: dict[str, Any] = {}
    differences = None
    if serial.seconds:
        facts = _speed(workload, serial.seconds_per_item * workload.num_items, work, setting)
        facts["latency_ms"] = {
            name: value * workload.num_items / len(workload.requests)
            for name, value in latencies(serial.seconds).items()
        }
        facts["times_ms"] = [round(1e3 * t, 4) for t in serial.seconds]
        facts["split_ms"] = _split(timed)
        facts["speedup_over_serial"] = 1.0
        facts["sampled_items"] = len(serial.seconds)
        facts["ran_as"] = "serial"
        facts["notes"] = [f"{len(serial.seconds)} of {workload.num_items} items timed, one a call; times are scaled"]
        differences = Differences(0.0, 0.0, len(serial.seconds))  # it is the reference
    return _row(
        case, workload, timed, setting, work, differences, why_void(timed, differences, setting.tolerance), facts
    )


def _row(
    case: Case,
    workload: Workload,
    timed: Measurement,
    setting: Setting,
    work: Work,
    differences: Differences | None,
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
        void=void,
        notes=notes,
        **counted(timed, work),
        **compared(differences, setting.tolerance),
        **facts,
    )


def _speed(workload: Workload, seconds: float, work: Work, setting: Setting) -> dict[str, Any]:
    rates: Utilization = reached(work, seconds, setting.ceilings)
    return {
        "items_per_second": workload.num_items / seconds,
        "tokens_per_second": workload.tokens / seconds,
        "request_ms": 1e3 * seconds,
        "latency_per_item_ms": 1e3 * seconds / workload.num_items,
        "reached": dict(vars(rates)),
    }


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
