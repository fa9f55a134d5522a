"""The highest rate of arrivals within a limit: doubled until it is passed, then bisected.

It only decides which rate is tried next; trying one is the caller's work (`run`).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import sqrt

FACTOR = 2.0
NEAR_ENOUGH = 1.1  # between the highest rate within the limit and the lowest beyond it
MOST_STEPS = 16
LOWEST = 1 / 64  # of the first rate: below, nothing is within the limit


@dataclass(frozen=True)
class Step:
    rate: float
    within: bool
    why: str = ""  # it is not


async def ramp(first: float, attempt: Callable[[float], Awaitable[Step]]) -> list[Step]:
    """The steps in the order they were taken; the best is `best_of`."""
    steps: list[Step] = []
    low, high, rate = 0.0, float("inf"), first
    while len(steps) < MOST_STEPS and rate >= first * LOWEST:
        steps.append(await attempt(rate))
        if steps[-1].within:
            low = max(low, rate)
        else:
            high = min(high, rate)
        if low and high / low <= NEAR_ENOUGH:
            break
        rate = rate * FACTOR if high == float("inf") else sqrt(low * high) if low else rate / FACTOR
    return steps


def best_of(steps: list[Step]) -> Step | None:
    """The highest rate within the limit that is below every rate that was not."""
    beyond = min((step.rate for step in steps if not step.within), default=float("inf"))
    return max((s for s in steps if s.within and s.rate < beyond), key=lambda s: s.rate, default=None)
