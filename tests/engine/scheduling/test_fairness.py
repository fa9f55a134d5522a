"""Whose turn it is: tenants get equal shares, a tenant's own requests go by size, age and priority."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from onepass.engine.job import Tenant
from onepass.engine.scheduling.fairness import MAX_HALF_LIFE, STEP_SECONDS, STEPS_TO_HALF, FairQueue

STEP = 100


@dataclass(eq=False)
class Work:
    """As much of a job as the order looks at."""

    name: str
    tokens_left: int
    share: Tenant = field(default_factory=Tenant)
    arrived: float = 0.0
    future: "Future[Any]" = field(default_factory=Future)


def order(shares: FairQueue, *work: Work) -> list[str]:
    return [job.name for job in shares.in_order(work)]  # type: ignore[arg-type, attr-defined]


def at(now: float) -> FairQueue:
    return FairQueue(STEP, clock=lambda: now)


def test_the_least_left_to_do_goes_first() -> None:
    assert order(at(0), Work("large", 900), Work("small", 10)) == ["small", "large"]


def test_waiting_counts() -> None:
    old = Work("old", 900, arrived=0.0)
    assert order(at(10), old, Work("new", 10, arrived=10.0)) == ["new", "old"]
    assert order(at(300), old, Work("new", 10, arrived=300.0)) == ["old", "new"]


def test_a_job_a_hundred_times_as_large_waits_seven_times_as_long_not_a_hundred() -> None:
    """What it counts as is halved again and again: 2^7 > 100."""
    half = STEPS_TO_HALF * STEP_SECONDS
    for size, turns in ((2, 1), (100, 7), (10_000, 14)):
        old = Work("old", 10 * size)
        assert order(at(turns * half - half), old, Work("new", 10, arrived=turns * half - half))[0] == "new"
        assert order(at(turns * half + 1), old, Work("new", 10, arrived=turns * half + 1))[0] == "old"


def test_a_lower_priority_number_goes_first_among_a_tenants_own() -> None:
    urgent, plain = Work("urgent", 500, Tenant("a", -1)), Work("plain", 10, Tenant("a"))
    assert order(at(0), plain, urgent) == ["urgent", "plain"]


def test_priority_does_not_starve_others_for_ever() -> None:
    urgent, plain = Work("urgent", 10, Tenant("a", -1), arrived=400.0), Work("plain", 10, Tenant("a"), arrived=0.0)
    assert order(at(400), urgent, plain) == ["plain", "urgent"]


def test_a_tenant_cannot_push_others_aside_by_asking_more_or_by_priority() -> None:
    """Each turn goes to who was served least: over many turns both get the same tokens."""
    shares, given = at(0), {"greedy": 0, "modest": 0}
    for _ in range(1000):
        waiting = [Work("greedy", 1, Tenant("greedy", -100)) for _ in range(20)] + [
            Work("modest", 900, Tenant("modest"))
        ]
        first = order(shares, *waiting)[0]
        tokens = 30 if first == "greedy" else 70
        shares.served(first, tokens)
        given[first] += tokens
    assert abs(given["greedy"] - given["modest"]) <= 70


def test_a_tenant_that_comes_back_has_saved_nothing_up() -> None:
    shares = at(0)
    both = Work("a", 1, Tenant("a")), Work("b", 1, Tenant("b"))
    order(shares, *both)
    for _ in range(100):
        order(shares, both[0])
        shares.served("a", 50)
    turns = []
    for _ in range(10):
        turns.append(order(shares, *both)[0])
        shares.served(turns[-1], 50)
    assert turns.count("a") == turns.count("b") == 5


def test_a_slow_device_lets_jobs_age_slowly() -> None:
    """At 100 tokens a second a step takes a second; 160 of them are more than the minute it takes at most until a job
    counts as half."""
    shares = at(300)
    old, new = Work("old", 900, arrived=0.0), Work("new", 10, arrived=300.0)
    assert order(shares, old, new) == ["old", "new"]
    shares.took(200, 2.0)
    assert order(shares, old, new) == ["new", "old"]
    assert order(FairQueue(STEP, clock=lambda: 6000.0), Work("old", 900), Work("new", 10, arrived=6000.0))[0] == "old"


def test_a_very_slow_device_lets_no_large_job_wait_for_ever() -> None:
    """Two cores that take 20 s for a step: by steps alone a halving would take most of an hour."""
    later = 4 * MAX_HALF_LIFE + 1
    queue = at(later)
    queue.took(STEP, 20.0)
    old, new = Work("old", 160), Work("new", 10, arrived=later)
    assert order(queue, old, new) == ["old", "new"]
