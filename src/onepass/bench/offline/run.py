"""A benchmark from beginning to end: ceilings, labels, the serial reference, every case, and then the peers.

Everything runs one after the other, never at the same time. What is kept of it is `document`; printing is `tables`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax

from onepass.api import ScoreRequest
from onepass.bench.ceilings import Ceilings, measure_ceilings
from onepass.bench.mixed import MixedStream, Traffic
from onepass.bench.offline.cases import BASE_CACHE_BYTES, Case, Sweep, Way, cases
from onepass.bench.offline.measure import Timing, measure, requests_in
from onepass.bench.offline.reference import Reference
from onepass.bench.offline.row import drift_of, row_of, serial_row
from onepass.bench.offline.unquantized import over_unquantized
from onepass.bench.roofline import needed
from onepass.bench.row import Row, Setting
from onepass.bench.workloads import Shape, Workload, make_workload, resized, shape_named, workload_of
from onepass.engine.config import Quantize
from onepass.engine.cost_model import CostModel
from onepass.engine.load import quantized
from onepass.errors import ConfigError
from onepass.evidence.tolerance import BETWEEN_MODES, numbers_name
from onepass.loading.model import Model
from onepass.loading.tensor_reader import Progress, silent
from onepass.models.layout import mesh_of
from onepass.models.weights import Weights
from onepass.scorer import Scorer

MAX_PAGE = 128  # tokens of a page of kept keys, at most

Tell = Callable[[Row], None]


@dataclass(frozen=True)
class Plan:
    """What a benchmark is asked for. `requests` replaces the named workload."""

    workload: str = "small"
    modes: tuple[str, ...] = ("serial", "packed-segment", "extend", "auto")
    requests: tuple[ScoreRequest, ...] = ()
    sweeps: tuple[Sweep, ...] = ()
    speedup_table: bool = False
    timing: Timing = field(default_factory=Timing)
    serial_items: int = 10
    seed: int = 0
    in_flight: int = 1
    overrides: dict[str, int] = field(default_factory=dict)  # of the shape: query, items, item_tokens
    dp: int = 1  # replicas of the model
    quantize: Quantize | None = None
    quantize_activations: bool | None = None  # None: as the engine decides
    traffic: Traffic | None = None  # of workload `mixed`

    @property
    def engine_options(self) -> dict[str, Any]:
        """Fields of `EngineConfig` of the scorers that are timed."""
        return {"dp": self.dp, "quantize_activations": self.quantize_activations}

    def shape(self) -> Shape | None:
        if self.requests:
            return None
        sizes = {"query": None, "items": None, "item_tokens": None, **self.overrides}
        return resized(shape_named(self.workload), **sizes)

    def cases(self) -> list[Case]:
        return cases(self.modes, self.shape(), self.sweeps, self.speedup_table)


@dataclass
class BenchRun:
    """One dtype's rows, with what they stand on. `weights` are those of the reference."""

    dtype: str  # or how the weights of the rows are quantized
    model: Model
    weights: Weights
    ceilings: Ceilings
    labels: list[int]
    workloads: dict[str, Workload | MixedStream]  # by checksum
    rows: list[Row]
    engine: dict[str, Any]


def bench(loaded: tuple[Model, Weights], plan: Plan, tell: Tell, progress: Progress = silent) -> BenchRun:
    """All cases in the dtype the weights have, or quantized; the reference is never that."""
    model, weights = loaded
    dtype = numbers_name(str(weights.embed.dtype), plan.quantize)
    check_dtype(dtype)
    timed_weights = quantized(model, weights, plan.quantize, plan.quantize_activations)
    progress("measuring the machine", 0, 1)
    ceilings = ceilings_of(dtype, weights, plan.dp)
    reference = Reference.open(model, weights)
    scorers: dict[Way, Scorer] = {}
    try:
        ran = BenchRun(dtype, model, weights, ceilings, [], {}, [], decided(reference.scorer))
        todo = plan.cases()
        for done, case in enumerate(todo):
            progress(f"{dtype} {case.way.name} {case.sweep or ''}", done, len(todo))
            workload = _workload(plan, case, reference, ran)
            setting = Setting(dtype, ceilings, BETWEEN_MODES[dtype], reference.among_labels)
            row = _run_case(case, workload, plan, reference, setting, scorers, timed_weights)
            if row.drift and row.sound and case.purpose == "modes":
                row = _beside_unquantized(row, case, workload, plan, loaded, scorers)
            ran.rows.append(row)
            tell(row)
        return ran
    finally:
        reference.close()
        for scorer in scorers.values():
            scorer.close()


def check_dtype(dtype: str) -> str:
    if dtype not in BETWEEN_MODES:
        raise ConfigError(f"a benchmark runs in float32 or bfloat16; the weights are {dtype}")
    return dtype


def ceilings_of(dtype: str, weights: Weights, dp: int) -> Ceilings:
    """Of all devices that the replicas of the model lie on. Weights in 8 bits on CPUs, and in a file's blocks, have the
    network's products to be set against: those of `weights`, which are not quantized."""
    ceilings = measure_ceilings(dtype if dtype == "fp8" else str(weights.embed.dtype))
    if jax.default_backend() == "cpu":  # whose devices are parts of one machine
        return ceilings
    mesh = mesh_of(weights)
    return ceilings.times((1 if mesh is None else mesh.size) * dp)


def _workload(plan: Plan, case: Case, reference: Reference, ran: BenchRun) -> Workload:
    """The case's tokens, with labels: those of the first workload serve all, so that their rows are comparable."""
    config = ran.model.config
    if case.shape is None:
        workload = workload_of(plan.workload, plan.requests, reference.scorer.engine.encoder)
    else:
        workload = make_workload(plan.workload, case.shape, config.vocab_size, plan.seed, plan.in_flight)
    if not ran.labels and not all(one.labels for one in workload.requests):
        ran.labels = reference.choose_labels(workload.requests[0])
    workload = workload.with_labels(ran.labels)
    ran.workloads.setdefault(workload.checksum, workload)
    return workload


def _run_case(
    case: Case,
    workload: Workload,
    plan: Plan,
    reference: Reference,
    setting: Setting,
    scorers: dict[Way, Scorer],
    weights: Weights,
) -> Row:
    serial = reference.sample(workload, plan.serial_items)
    model = reference.scorer.model
    work = needed(CostModel.of(model.config, weights), workload)
    if case.way.name == "serial":
        return serial_row(case, workload, serial, work, setting)
    way = _way(case, workload, plan, model)
    if way not in scorers:
        scorers[way] = Scorer(model, weights, way.config)
    scorer = scorers[way]
    requests = requests_in(workload, case.way.mode)
    timed = measure(scorer, requests, plan.timing, workload.cached, workload.in_flight > 1)
    scorer.engine.contexts.clear()  # other rows' memory is not this one's
    row = row_of(case, workload, timed, serial, work, setting)
    if plan.quantize is None or not serial.seconds:
        return row
    form = scorer.kernels.int8_products if plan.quantize == "int8" else f"weights in {plan.quantize}"
    return replace(row, drift=drift_of(timed, reference.every_item(workload, serial)), form=form)


def _beside_unquantized(
    row: Row, case: Case, workload: Workload, plan: Plan, loaded: tuple[Model, Weights], scorers: dict[Way, Scorer]
) -> Row:
    way = _way(case, workload, plan, loaded[0])
    plain = replace(way, config=replace(way.config, quantize_activations=None))
    ratio = over_unquantized(scorers[way], plain, loaded, workload, plan.timing.repeats)
    scorers[way].engine.contexts.clear()
    notes = [] if ratio is None else [f"by turns {ratio:.2f} x the same model in {loaded[1].embed.dtype}"]
    return replace(row, over_unquantized=ratio, notes=[*row.notes, *notes])


def _way(case: Case, workload: Workload, plan: Plan, model: Model) -> Way:
    config = replace(case.way.config, **plan.engine_options, cache_bytes=cache_bytes(workload, model))
    return replace(case.way, config=config)


def cache_bytes(workload: Workload, model: Model) -> int:
    """Room for every context of a workload whose contexts are kept, whatever the dtype."""
    contexts = sum(len(one.query) + MAX_PAGE for one in workload.requests) if workload.cached else 0
    return max(BASE_CACHE_BYTES, contexts * model.config.kv_bytes_per_token(4))


def decided(scorer: Scorer) -> dict[str, Any]:
    """The engine's options as decided for this device; modes change some of them, which rows tell."""
    return {
        name: str(value) if isinstance(value, Path) else value for name, value in vars(scorer.engine.config).items()
    }


def fastest(rows: Sequence[Row], dtype: str) -> Row | None:
    """The best sound row of the plain workload."""
    sound = [r for r in rows if r.sound and r.purpose == "modes" and r.dtype == dtype and r.mode != "serial"]
    return max(sound, key=lambda r: r.items_per_second or 0.0, default=None)
