"""How far do quantized weights move the scores? Every item's probabilities beside those of the same model unquantized.

Not a question of right or wrong as in `equivalence`, but of how much: the largest and the mean difference, and whether
the items come in the same order (Spearman's correlation of their ranks, label by label). What passes is generous; the
figures are what a user decides by. That items do not see each other is asked again, as of any way of computing.
"""

import time
from collections.abc import Iterator

from onepass.evidence.drift import Drift
from onepass.evidence.tolerance import BETWEEN_MODES, numbers_name
from onepass.validate.check import Outcome, run_case
from onepass.validate.harness import Harness
from onepass.validate.isolation import isolation_cases
from onepass.validate.settings import Settings
from onepass.validate.workload import Workload

LEAST_CORRELATION = 0.8


def drift_outcomes(
    work: Workload, settings: Settings, plain: Harness, narrow: Harness, leaking: Harness
) -> Iterator[Outcome]:
    """`narrow` and `leaking` have the quantized weights, `plain` those they were made of."""
    assert settings.quantize is not None
    for way in _drift_ways(settings):
        yield _drift(work, settings.large_count, way, settings.quantize, plain, narrow)
    for case in isolation_cases(work, settings, BETWEEN_MODES["bfloat16"]):
        yield run_case(case, narrow, leaking)


def num_drift_outcomes(work: Workload, settings: Settings) -> int:
    return len(_drift_ways(settings)) + len(list(isolation_cases(work, settings, BETWEEN_MODES["bfloat16"])))


def _drift_ways(settings: Settings) -> list[str]:
    return [way for way in settings.packed_ways if way != "packed-dense"]


def _drift(work: Workload, count: int, way: str, quantize: str, plain: Harness, narrow: Harness) -> Outcome:
    start = time.perf_counter()
    allowed = BETWEEN_MODES[numbers_name(str(plain.weights.embed.dtype), quantize)]
    items = work.first(count)
    right, found = (rig.numbers(way, work.query, items) for rig in (plain, narrow))
    drift = Drift.between(right, found)
    alike = drift.rank_correlation
    problems = [
        f"{name} is {is_now:.1e}; at most {most:.0e} is allowed"
        for name, is_now, most in (
            ("the largest difference", drift.most, allowed.most),
            ("the mean difference", drift.mean, allowed.mean),
        )
        if not is_now <= most
    ]
    if alike is not None and not alike >= LEAST_CORRELATION:
        problems.append(f"ranks correlate by {alike:.3f}; at least {LEAST_CORRELATION} is wanted")
    order = "too few items to rank" if alike is None else f"ranks correlate by {alike:.4f}"
    return Outcome(
        name=f"drift of {quantize}",
        case=f"{way}, {count} items, {order}",
        status="failed" if problems else "passed",
        max_difference=drift.most,
        mean_difference=drift.mean,
        tolerance_max=allowed.most,
        tolerance_mean=allowed.mean,
        control_difference=None,
        note="; ".join(problems),
        seconds=time.perf_counter() - start,
        rank_correlation=alike,
    )
