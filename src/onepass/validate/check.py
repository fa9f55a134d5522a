"""A check before and after it ran: `Case` says what to compare and how close, `Outcome` says what came of it.

Every case that isolation bears on is run twice: as it is, and as a negative control with the isolation switched off,
where it must fail. A check whose control passes has proved nothing, so that is a failure too.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from onepass.errors import DoesNotFit
from onepass.evidence.tolerance import Tolerance
from onepass.validate.harness import Harness

Differences = Iterator[np.ndarray]  # absolute differences, a comparison at a time


class CheckFailed(Exception):
    """Something other than a number is wrong: a cache that was not used, a mode that was not honoured."""


@dataclass(frozen=True)
class Case:
    """`measure` compares with the scorers of the harness it is given; `control` says that a leak must show in it."""

    name: str
    way: str
    detail: str
    tolerance: Tolerance
    measure: Callable[[Harness], Differences]
    control: bool = True


@dataclass(frozen=True)
class Outcome:
    name: str
    case: str
    status: Literal["passed", "failed", "skipped"]
    max_difference: float | None
    mean_difference: float | None
    tolerance_max: float
    tolerance_mean: float
    control_difference: float | None  # the largest difference seen by the negative control; None: it has none
    note: str
    seconds: float
    rank_correlation: float | None = None  # of quantized weights, with those they were made of

    @property
    def passed(self) -> bool:
        return self.status == "passed"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


def run_case(case: Case, sound: Harness, leaking: Harness) -> Outcome:
    start = time.perf_counter()
    try:
        seen = _gather(case.measure(sound))
        problem = _too_far(seen, case.tolerance)
        control = None
        if case.control and not problem:
            control = _control(case, leaking)
            if not control > case.tolerance.most:
                problem = (
                    f"the negative control did not fail: without isolation the largest difference is {control:.1e}"
                )
    except DoesNotFit as error:
        return skipped(case.name, f"{case.way}, {case.detail}", case.tolerance, str(error))
    except Exception as error:
        return _outcome(case, start, None, None, f"{type(error).__name__}: {error}")
    return _outcome(case, start, seen, control, problem)


def skipped(name: str, case: str, tolerance: Tolerance, note: str) -> Outcome:
    return Outcome(name, case, "skipped", None, None, tolerance.most, tolerance.mean, None, note, 0.0)


def _outcome(case: Case, start: float, seen: np.ndarray | None, control: float | None, problem: str) -> Outcome:
    usable = seen is not None and seen.size and np.isfinite(seen).all()
    return Outcome(
        name=case.name,
        case=f"{case.way}, {case.detail}",
        status="failed" if problem else "passed",
        max_difference=float(seen.max()) if usable and seen is not None else None,
        mean_difference=float(seen.mean()) if usable and seen is not None else None,
        tolerance_max=case.tolerance.most,
        tolerance_mean=case.tolerance.mean,
        control_difference=control if control is not None and np.isfinite(control) else None,
        note=problem,
        seconds=time.perf_counter() - start,
    )


def _gather(differences: Differences) -> np.ndarray:
    parts = [np.asarray(part, np.float64).reshape(-1) for part in differences]
    return np.concatenate(parts) if parts else np.zeros(0)


def _too_far(seen: np.ndarray, tolerance: Tolerance) -> str:
    if not seen.size:
        return "nothing was compared"
    if not np.isfinite(seen).all():
        return f"{int((~np.isfinite(seen)).sum())} of {seen.size} differences are not finite"
    if seen.max() > tolerance.most:
        return f"the largest difference is {seen.max():.1e}; at most {tolerance.most:.0e} is allowed"
    if seen.mean() > tolerance.mean:
        return f"the mean difference is {seen.mean():.1e}; at most {tolerance.mean:.0e} is allowed"
    return ""


def _control(case: Case, leaking: Harness) -> float:
    """The largest difference without isolation; one that is too large is enough, so the rest need not run."""
    most = 0.0
    for part in case.measure(leaking):
        part = np.asarray(part, np.float64)
        most = max(most, float(part.max()) if part.size else 0.0)
        if most > case.tolerance.most:
            break
    return most
