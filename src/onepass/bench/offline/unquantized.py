"""How much faster a quantized row is than the same model unquantized: passes of both by turns, in one process."""

import numpy as np

from onepass.bench.offline.cases import Way
from onepass.bench.offline.measure import Timing, measure, requests_in
from onepass.bench.workloads import Workload
from onepass.loading.model import Model
from onepass.models.weights import Weights
from onepass.scorer import Scorer


def over_unquantized(
    scorer: Scorer, way: Way, loaded: tuple[Model, Weights], workload: Workload, repeats: int
) -> float | None:
    """The unquantized model's seconds over those of `scorer`, the median; None where a pass failed, or something was
    compiled in one."""
    requests = requests_in(workload, way.mode)

    def seconds(timed: Scorer) -> float | None:
        found = measure(timed, requests, Timing(1, 0), workload.cached, workload.in_flight > 1)
        sound = not (found.errors or found.engine_compilations or found.backend_compilations)
        return found.seconds if sound else None

    with Scorer(*loaded, way.config) as plain:
        for either in (plain, scorer):  # what a first pass makes ready
            seconds(either)
        turns = [(seconds(plain), seconds(scorer)) for _ in range(repeats)]
        plain.engine.contexts.clear()
    ratios = [theirs / ours for theirs, ours in turns if theirs and ours]
    return float(np.median(ratios)) if len(ratios) == repeats else None
