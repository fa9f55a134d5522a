"""Verdicts: what is too far fails, what cannot fail proves nothing, and what is not a number is not close."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onepass.errors import DoesNotFit
from onepass.evidence.tolerance import Tolerance
from onepass.validate.check import Case, run_case

SOUND: Any = SimpleNamespace(leaking=False)
LEAKING: Any = SimpleNamespace(leaking=True)


def case(sound: list[float], leaking: list[float] | None) -> Case:
    def measure(rig: Any) -> Any:
        yield np.array(leaking if rig.leaking else sound)

    return Case("check", "packed", "2 items", Tolerance(1e-2, 2e-3), measure, control=leaking is not None)


@pytest.mark.parametrize(
    ("sound", "leaking", "status", "note"),
    [
        ([1e-3, 0.0], [0.5], "passed", ""),
        ([1e-3, 0.0], None, "passed", ""),
        ([2e-2, 0.0, 0, 0, 0, 0, 0, 0, 0, 0, 0], [0.5], "failed", "largest difference is 2.0e-02"),
        ([9e-3, 9e-3], [0.5], "failed", "mean difference is 9.0e-03"),
        ([0.0, float("nan")], [0.5], "failed", "1 of 2 differences are not finite"),
        ([0.0], [1e-3], "failed", "negative control did not fail"),
        ([], [0.5], "failed", "nothing was compared"),
    ],
)
def test_verdicts(sound: list[float], leaking: list[float] | None, status: str, note: str) -> None:
    outcome = run_case(case(sound, leaking), SOUND, LEAKING)
    assert outcome.status == status
    assert note in outcome.note
    assert bool(outcome.note) == (status != "passed")


def test_a_control_stops_at_the_first_leak() -> None:
    def measure(rig: Any) -> Any:
        yield np.array([0.5 if rig.leaking else 0.0])
        if rig.leaking:
            raise AssertionError("went on")

    outcome = run_case(Case("check", "packed", "", Tolerance(0, 0), measure), SOUND, LEAKING)
    assert (outcome.status, outcome.control_difference) == ("passed", 0.5)


def test_an_error_fails_its_check_only_and_what_does_not_fit_is_not_run() -> None:
    def raising(error: Exception) -> Case:
        def measure(rig: Any) -> Any:
            raise error
            yield

        return Case("check", "packed", "", Tolerance(0, 0), measure)

    broken = run_case(raising(ZeroDivisionError("by zero")), SOUND, LEAKING)
    assert (broken.status, broken.note) == ("failed", "ZeroDivisionError: by zero")
    assert run_case(raising(DoesNotFit("needs 9 GiB")), SOUND, LEAKING).status == "skipped"
