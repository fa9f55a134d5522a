"""A benchmark of mixed traffic from beginning to end: ceilings, the traffic, its check, then workload `small` alone.

`small` runs after the traffic, on the same scorer, so that the traffic meets an engine that has served nothing. Driving
is `mixed_window`, the row `mixed_row`; peers on the same requests are `mixed_peers`.
"""

from dataclasses import dataclass, replace

import jax

from onepass.bench.mixed import MixedStream, Traffic
from onepass.bench.offline.cases import Case, Way
from onepass.bench.offline.measure import measure, requests_in
from onepass.bench.offline.mixed_row import mixed_row, over_small_note
from onepass.bench.offline.mixed_window import TrafficWindow, compare_with_serial, drive
from onepass.bench.offline.reference import Reference
from onepass.bench.offline.row import row_of
from onepass.bench.offline.run import BenchRun, Plan, Tell, ceilings_of, check_dtype, decided
from onepass.bench.roofline import needed, traffic_needed
from onepass.bench.row import Row, Setting
from onepass.bench.workloads import make_workload, shape_named
from onepass.engine.cost_model import CostModel
from onepass.engine.load import quantized
from onepass.evidence.tolerance import BETWEEN_MODES, numbers_name
from onepass.loading.model import Model
from onepass.loading.tensor_reader import Progress, silent
from onepass.models.weights import Weights
from onepass.scorer import Scorer

SMALL = "small"
ALONE = "alone"  # purpose of the row beside the traffic's


@dataclass
class MixedBenchRun(BenchRun):
    """`windows` are those of the rows of mixed traffic, by mode."""

    stream: MixedStream
    windows: dict[str, TrafficWindow]


def bench_mixed(
    loaded: tuple[Model, Weights], plan: Plan, traffic: Traffic, tell: Tell, progress: Progress = silent
) -> MixedBenchRun:
    model, weights = loaded
    dtype = check_dtype(numbers_name(str(weights.embed.dtype), plan.quantize))
    timed_weights = quantized(model, weights, plan.quantize, plan.quantize_activations)
    progress("measuring the machine", 0, 1)
    setting = Setting(dtype, ceilings_of(dtype, weights, plan.dp), BETWEEN_MODES[dtype], among_labels=False)
    stream = MixedStream(model.config.vocab_size, plan.seed, traffic.kinds, traffic.clients)
    ran = MixedBenchRun(dtype, model, weights, setting.ceilings, [], {stream.checksum: stream}, [], {}, stream, {})
    rows: list[Row] = []
    small: Row | None = None
    for done, mode in enumerate(plan.modes):
        progress(f"{dtype} {stream.name} {mode}", done, len(plan.modes))
        way = Way.named(mode)
        with Scorer(model, timed_weights, replace(way.config, **plan.engine_options)) as scorer:
            ran.engine = decided(scorer)
            scorer.compile(progress)  # as a server does before it is ready; from here on nothing may compile
            row = _traffic_row(way, scorer, plan, traffic, setting, ran)
            if small is None:
                progress(f"{dtype} {SMALL} alone", done, len(plan.modes))
                small = _small_alone(way, scorer, plan, traffic, setting, ran)
                tell(small)
        rows.append(beside_small(row, small))
        tell(rows[-1])
    ran.rows = rows if small is None else [*rows, small]
    return ran


def beside_small[R: Row](row: R, small: Row) -> R:
    """The traffic's row with its rate over that of `small`, where both have one."""
    if row.tokens_per_second is None or small.tokens_per_second is None:
        return row
    ratio = row.tokens_per_second / small.tokens_per_second
    return replace(row, over_small=ratio, notes=[*row.notes, over_small_note(ratio, small.tokens_per_second)])


def _traffic_row(way: Way, scorer: Scorer, plan: Plan, traffic: Traffic, setting: Setting, ran: MixedBenchRun) -> Row:
    window = ran.windows[way.name] = drive(scorer, ran.stream, traffic, way.mode)
    work = traffic_needed(
        CostModel.of(ran.model.config, scorer.weights), (ran.stream.sizes(one.number) for one in window.answered)
    )
    if plan.quantize is None:
        differences = compare_with_serial(scorer, ran.stream, window, plan.serial_items)
    else:  # the reference is never quantized
        with Scorer(ran.model, ran.weights, Way.named("serial").config) as reference:
            differences = compare_with_serial(reference, ran.stream, window, plan.serial_items)
    return mixed_row(way.name, ran.stream, window, differences, work, setting)


def _small_alone(way: Way, scorer: Scorer, plan: Plan, traffic: Traffic, setting: Setting, ran: MixedBenchRun) -> Row:
    """As `onepass bench --workload small` times it: one at a time on a CPU, which one request keeps busy; as many in
    flight as the traffic had elsewhere."""
    in_flight = 1 if jax.default_backend() == "cpu" else traffic.clients
    shape = shape_named(SMALL)
    workload = make_workload(SMALL, shape, ran.model.config.vocab_size, plan.seed, in_flight)
    reference = Reference.open(ran.model, ran.weights)
    try:
        ran.labels = reference.choose_labels(workload.requests[0])
        workload = workload.with_labels(ran.labels)
        serial = reference.sample(workload, plan.serial_items)
    finally:
        reference.close()
    ran.workloads[workload.checksum] = workload
    timed = measure(scorer, requests_in(workload, way.mode), plan.timing, False, in_flight > 1)
    work = needed(CostModel.of(ran.model.config, scorer.weights), workload)
    case = Case(way, shape, purpose=ALONE)
    return row_of(case, workload, timed, serial, work, replace(setting, among_labels=reference.among_labels))
