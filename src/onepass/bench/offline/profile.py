"""One traced request, and where its time went: scopes of the network on the device, stages on the host, and idling.

The trace is JAX's own and stays for the standard viewers. Which operation is in which scope is `hlo`.
"""

import inspect
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from onepass.bench.offline.cases import Way
from onepass.bench.offline.hlo import CONTROL, OTHER, Operations, operations
from onepass.bench.offline.measure import Timing, measure, requests_in
from onepass.bench.workloads import Workload
from onepass.engine.config import Quantize
from onepass.engine.encoding.encode import Encoder
from onepass.engine.load import quantized
from onepass.engine.packing import pack
from onepass.engine.planner import Planner
from onepass.engine.readout import result_of
from onepass.engine.runner import Runner
from onepass.engine.scheduling.scheduler import Scheduler
from onepass.loading.model import Model
from onepass.models.weights import Weights
from onepass.scorer import Scorer

WINDOW = "onepass profile"
RECORDED = "command_buffer"  # XLA's name for a CUDA graph
# Functions of the engine whose time the Python tracer gives.
STAGES: Mapping[Callable[..., Any], str] = {
    Encoder.encode: "host encode",
    Planner.plan: "plan",
    pack: "pack",
    Runner.run: "dispatch and transfer in",
    Scheduler.collect: "wait and transfer out",
    result_of: "read-out on the host",
}
_PYTHON = re.compile(r"^\$(?P<file>\w+\.py):\d+ (?P<function>\w+)$")
_COPY = re.compile(r"memcpy|copytodevice|d2h|h2d", re.IGNORECASE)


@dataclass(frozen=True)
class Event:
    name: str
    start: float
    end: float
    program: int | None = None  # XLA's number for it; None: not an operation of a program

    @property
    def milliseconds(self) -> float:
        return (self.end - self.start) / 1e6


@dataclass(frozen=True)
class TimeBreakdown:
    """Milliseconds by what they were spent on, largest first. Operations may run side by side: device parts add up to
    more than `busy_ms` then."""

    wall_ms: float
    busy_ms: float
    device: dict[str, float]
    host: dict[str, float]

    @property
    def idle_ms(self) -> float:
        return max(0.0, self.wall_ms - self.busy_ms)


@dataclass(frozen=True)
class Profile:
    mode: str
    ran_as: str
    reason: str
    spent: TimeBreakdown
    untraced_ms: dict[str, float]  # the engine's own figures, medians without a tracer
    trace: Path

    def to_dict(self) -> dict[str, Any]:
        spent = {**vars(self.spent), "idle_ms": self.spent.idle_ms}
        return {"object": "profile", **vars(self), "spent": spent, "trace": str(self.trace)}


@contextmanager
def compile_afresh() -> Iterator[None]:
    """Without JAX's own cache: a program from disk may name functions of an older version of the code."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)


def profile(
    loaded: tuple[Model, Weights],
    workload: Workload,
    mode: str,
    folder: Path,
    quantize: Quantize | None = None,
    quantize_activations: bool | None = None,
) -> Profile:
    """Warm up, time a few requests without a tracer, then trace one. `folder` receives the trace. What is loaded is not
    quantized yet."""
    way = Way.named(mode)
    requests = requests_in(workload, way.mode)
    model, weights = loaded
    config = replace(way.config, keep_programs=False, quantize_activations=quantize_activations)
    with Scorer(model, quantized(model, weights, quantize, quantize_activations), config) as scorer:
        timed = measure(scorer, requests, Timing(repeats=5, warm_up=2), workload.cached)
        if timed.errors:
            raise RuntimeError(timed.errors[0])
        if not workload.cached:
            scorer.engine.contexts.clear()
        with jax.profiler.trace(str(folder)), jax.profiler.TraceAnnotation(WINDOW):
            for request in requests:
                scorer.score_many([request])
        texts = scorer.engines[0].runner.texts()
        known = [operations(text) for text in texts.values()]
    results = [result for results in timed.results for result in results]
    untraced = {
        "total": 1e3 * timed.seconds,
        "encode": float(np.median([r.timings.encode_ms for r in results])),
        "queue": float(np.median([r.timings.queue_ms for r in results])),
        "device": float(np.median([r.timings.device_ms for r in results])),
    }
    return Profile(mode, results[-1].mode, results[-1].reason, spent(folder, known), untraced, folder)


def spent(folder: Path, known: list[Operations]) -> TimeBreakdown:
    found = sorted(folder.rglob("*.xplane.pb"))
    assert found, f"the profiler left no trace in {folder}"
    with warnings.catch_warnings():
        # jaxlib's reader makes Python warn of a missing __module__; as an error, that would end the process.
        warnings.simplefilter("ignore", DeprecationWarning)
        host, device = _events(found[-1])
    window = next(event for event in host if event.name == WINDOW)
    inside = [event for event in device if window.start <= event.start <= window.end]
    return TimeBreakdown(
        wall_ms=window.milliseconds,
        busy_ms=_union(inside) / 1e6,
        device=_largest_first(_by_part(inside, known)),
        host=_largest_first(_by_stage(event for event in host if window.start <= event.start <= window.end)),
    )


def _events(path: Path) -> tuple[list[Event], list[Event]]:
    """(host, device): operations carry the program they belong to; on a CPU they are in the host's plane."""
    host: list[Event] = []
    device: list[Event] = []
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        accelerator = plane.name.startswith("/device:")
        for line in plane.lines:
            if accelerator and not line.name.startswith(("Stream", "XLA Ops")):
                continue  # derived lines repeat the streams' events
            for event in _read(line.events):
                (device if accelerator or event.program is not None else host).append(event)
    return host, device


def _read(events: Iterable[Any]) -> Iterator[Event]:
    for event in events:
        stats = dict(event.stats)
        operation = stats.get("hlo_op")
        program = int(stats.get("program_id") or 0) if operation is not None else None
        # Of kernels launched together as a CUDA graph, the operation is the graph.
        recorded = operation is None or str(operation).startswith(RECORDED)
        name = event.name if recorded else str(operation)
        yield Event(name, event.start_ns, event.start_ns + event.duration_ns, program)


def _by_part(events: list[Event], known: list[Operations]) -> dict[str, float]:
    by_program: dict[int | None, list[Event]] = defaultdict(list)
    for event in events:
        if event.name.partition(".")[0] not in CONTROL:
            by_program[event.program].append(event)
    found: dict[str, float] = defaultdict(float)
    for program, ran in by_program.items():
        names = {event.name for event in ran}
        best = max(known, key=lambda one: one.likeness(names), default=None) if program is not None else None
        for event in ran:
            part = best.part(event.name) if best else OTHER
            if part == OTHER and _COPY.search(event.name):
                part = "transfer"
            found[part] += event.milliseconds
    return found


def _by_stage(events: Iterable[Event]) -> dict[str, float]:
    stages = {_traced_name(function): stage for function, stage in STAGES.items()}
    found: dict[str, float] = defaultdict(float)
    for event in events:
        named = _PYTHON.match(event.name)
        if named is not None and (stage := stages.get((named["file"], named["function"]))) is not None:
            found[stage] += event.milliseconds
    return found


def _traced_name(function: Callable[..., Any]) -> tuple[str, str]:
    """File and function, as the Python tracer names them."""
    code = inspect.unwrap(function).__code__
    return Path(code.co_filename).name, code.co_name


def _union(events: list[Event]) -> float:
    """Nanoseconds in which at least one of them ran."""
    total, reached = 0.0, 0.0
    for event in sorted(events, key=lambda one: one.start):
        total += max(0.0, event.end - max(event.start, reached))
        reached = max(reached, event.end)
    return total


def _largest_first(found: dict[str, float]) -> dict[str, float]:
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))
