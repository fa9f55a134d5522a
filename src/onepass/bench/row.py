"""A row of the report: one mode on one workload, with everything a reader needs to trust it, or the reasons not to.

A row with a compilation in its window, an error, or a score out of tolerance is void and says so. Rows are made in
`bench.offline.row`, `bench.offline.mixed_row` and `bench.online.row` from what each has measured.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from onepass.bench.ceilings import Ceilings
from onepass.bench.offline.counters import Peak
from onepass.bench.roofline import Work
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
    # Of quantized rows: how far all items' scores among the labels are from the same model unquantized.
    drift: dict[str, float | None] = field(default_factory=dict)
    form: str | None = None  # and in words, what is multiplied
    over_unquantized: float | None = None  # by turns with that model: its seconds over the row's, the median
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

    def why_void(self, tolerance: Tolerance) -> list[str]:
        if self.most <= tolerance.most and self.mean <= tolerance.mean:  # NaN is not
            return []
        return [
            f"scores differ from serial by {self.most:.1e} (mean {self.mean:.1e}); "
            f"allowed are {tolerance.most:.0e} (mean {tolerance.mean:.0e})"
        ]


class EngineWindow(Protocol):
    """What was counted of an engine in this process while requests were timed."""

    @property
    def peak(self) -> Peak | None: ...

    @property
    def engine_compilations(self) -> int: ...

    @property
    def backend_compilations(self) -> int: ...

    @property
    def errors(self) -> list[str]: ...


def compared(differences: Differences | None, tolerance: Tolerance) -> dict[str, Any]:
    """Fields of a row: how far its scores are from the reference."""
    most, mean = (finite(value) for value in differences.shown) if differences else (None, None)
    return {
        "max_difference": most,
        "mean_difference": mean,
        "tolerance": {"max": tolerance.most, "mean": tolerance.mean},
        "checked_items": differences.items if differences else 0,
    }


def counted(window: EngineWindow, work: Work) -> dict[str, Any]:
    """Fields of a row: what the engine needed, and what went wrong."""
    return {
        "flops_needed": work.flops,
        "bytes_needed": work.bytes,
        "peak_memory_bytes": window.peak.bytes if window.peak else 0,
        "peak_memory_kind": window.peak.kind if window.peak else "",
        "compilations": window.engine_compilations,
        "backend_compilations": window.backend_compilations,
        "errors": window.errors,
    }


def finite(value: float) -> float | None:
    """NaN is not JSON; the reason the row is void still names it."""
    return value if np.isfinite(value) else None


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
