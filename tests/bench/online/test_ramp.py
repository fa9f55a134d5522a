"""The search for the highest rate, on servers whose capacity is known."""

import asyncio

import pytest

from onepass.bench.online.ramp import MOST_STEPS, NEAR_ENOUGH, Step, best_of, ramp


def steps_for(capacity: float, first: float) -> list[Step]:
    async def attempt(rate: float) -> Step:
        return Step(rate, rate <= capacity, "" if rate <= capacity else "p99")

    return asyncio.run(ramp(first, attempt))


@pytest.mark.parametrize(("capacity", "first"), [(100.0, 1.0), (100.0, 90.0), (100.0, 1000.0), (0.37, 0.1)])
def test_it_ends_just_below_the_capacity(capacity: float, first: float) -> None:
    found = best_of(steps_for(capacity, first))
    assert found is not None
    assert capacity / NEAR_ENOUGH <= found.rate <= capacity


def test_the_rate_is_doubled_first_and_bisected_then() -> None:
    rates = [step.rate for step in steps_for(10.0, 2.0)]
    assert rates[:4] == [2.0, 4.0, 8.0, 16.0]
    assert rates[4] == pytest.approx((8 * 16) ** 0.5)
    assert len(rates) <= MOST_STEPS


def test_a_server_that_never_keeps_the_limit_has_no_best_rate() -> None:
    steps = steps_for(0.0, 8.0)
    assert best_of(steps) is None
    assert min(step.rate for step in steps) < 1


def test_a_rate_within_the_limit_above_one_that_was_not_is_luck() -> None:
    steps = [Step(2, True), Step(4, False, "429"), Step(8, True)]
    assert best_of(steps) == Step(2, True)
