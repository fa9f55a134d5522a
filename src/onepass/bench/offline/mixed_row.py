"""The row of mixed traffic: rates, latencies by kind, share of the roof, and the reasons not to believe it.

An error, a score out of tolerance, or a compilation at any time from the first request on voids it.
"""

from typing import Any

import numpy as np

from onepass.bench.mixed import MixedStream
from onepass.bench.offline.mixed_window import TrafficWindow
from onepass.bench.roofline import Work, reached
from onepass.bench.row import (
    FEWEST_REPEATS,
    Differences,
    Row,
    Setting,
    compared,
    counted,
    latencies,
    latencies_by_part,
    some_times,
)
from onepass.evidence.tolerance import Tolerance

ENOUGH_FOR_P99 = 100


def mixed_row(
    mode: str,
    stream: MixedStream,
    window: TrafficWindow,
    differences: Differences | None,
    work: Work,
    setting: Setting,
) -> Row:
    """`work` is what the answered requests needed; `found` how far their scores are from `serial`."""
    facts = _speed(window, work, setting) if window.answered else {}
    return Row(
        mode=mode,
        workload=stream.name,
        items_per_second=facts.pop("items_per_second", None),
        dtype=setting.dtype,
        purpose="modes",
        sweep={},
        options={},
        checksum=stream.checksum,
        num_items=sum(one.items for one in window.answered),
        tokens=sum(one.tokens for one in window.answered),
        repeats=len(window.answered),
        in_flight=window.clients,
        void=why_void(window, differences, setting.tolerance),
        notes=traffic_notes(len(window.answered)),
        requests=window.sent,
        window_seconds=window.seconds,
        num_errors=window.num_errors,
        **counted(window, work),
        **compared(differences, setting.tolerance),
        **facts,
    )


def why_void(window: TrafficWindow, differences: Differences | None, tolerance: Tolerance) -> list[str]:
    reasons = [f"error: {error}" for error in window.errors[:3]]
    if window.num_errors > 3:
        reasons.append(f"errors: {window.num_errors} of {window.sent} requests failed")
    if window.engine_compilations or window.backend_compilations:
        reasons.append(
            f"compiled from the first request on: {window.engine_compilations} programs of the engine, "
            f"{window.backend_compilations} of JAX"
        )
    if not window.answered:
        reasons.append(f"none of {window.sent} requests was answered")
    elif differences is None:
        reasons.append("no score was compared with the serial reference")
    return reasons if differences is None else [*reasons, *differences.why_void(tolerance)]


def traffic_notes(answered: int) -> list[str]:
    notes = ["every request has its own kind and lengths; nothing was warmed up, the clock starts with the first one"]
    if answered < FEWEST_REPEATS:
        notes.append(f"only {answered} timed calls; a figure to keep needs {FEWEST_REPEATS}")
    elif answered < ENOUGH_FOR_P99:
        notes.append(f"p99 of {answered} requests is nearly the slowest of them")
    return notes


def over_small_note(ratio: float, small: float) -> str:
    return f"tokens/s are {ratio:.2f} x those of workload small alone in the same run ({small:,.0f} tokens/s)"


def _speed(window: TrafficWindow, work: Work, setting: Setting) -> dict[str, Any]:
    answered, seconds = window.answered, max(window.seconds, 1e-9)
    times = [one.seconds for one in answered]
    items, modes = sum(one.items for one in answered), [one.mode for one in answered]
    outside = [max(0.0, 1e3 * one.seconds - one.encode_ms - one.device_ms) for one in answered]
    return {
        "items_per_second": items / seconds,
        "tokens_per_second": sum(one.tokens for one in answered) / seconds,
        "achieved_per_second": len(answered) / seconds,
        "latency_ms": latencies(times),
        "request_ms": 1e3 * seconds / len(answered),
        "latency_per_item_ms": 1e3 * seconds / items,
        "times_ms": some_times(times),
        "parts": latencies_by_part((one.kind, one.seconds) for one in answered),
        "reached": dict(vars(reached(work, seconds, setting.ceilings))),
        "padding_ratio": float(np.mean([one.padding_ratio for one in answered])),
        "split_ms": {
            "encode": float(np.median([one.encode_ms for one in answered])),
            "device": float(np.median([one.device_ms for one in answered])),
            "host": float(np.median(outside)),
        },
        "ran_as": max(set(modes), key=modes.count),
    }
