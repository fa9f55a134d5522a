"""Whose turn it is: equal shares of the device between tenants; of a tenant, the least left to do first, with ageing.

A tenant's service is counted in tokens given to the device; one that comes back after a pause starts level with the
others, so that nobody saves up. What a turn consists of is `scheduler`.
"""

import math
import time
from collections.abc import Callable, Sequence

from onepass.engine.job import Job

# A job counts as half its size for every so many steps' worth of time that it waits. Small requests go first on a slow
# device too: a large one is passed by new ones while it is counted as larger than they are, so for a few of these times
# at most. (In tokens instead of halves, one a hundred times as large would wait a hundred times as long.)
STEPS_TO_HALF = 160
STEP_SECONDS = 0.25  # before the device's rate is known
MAX_HALF_LIFE = 60.0  # seconds: two cores take seconds for a step, and a large request waited for ten minutes
HALVES_A_PRIORITY = 8  # one level of priority makes a job count as this many times halved


class FairQueue:
    def __init__(self, step_tokens: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._step_tokens = step_tokens
        self._half_life = STEPS_TO_HALF * STEP_SECONDS
        self._clock = clock
        self._rates: list[float] = []
        self._tokens: dict[str, float] = {}  # served so far, by tenant, of those that have work

    def in_order(self, jobs: Sequence[Job]) -> list[Job]:
        """The most urgent first."""
        self._level({job.share.tenant for job in jobs})
        if len(jobs) < 2:
            return list(jobs)
        now = self._clock()
        return sorted(jobs, key=lambda job: (self._tokens[job.share.tenant], self._left(job, now)))

    def served(self, tenant: str, tokens: int) -> None:
        self._tokens[tenant] = self._tokens.get(tenant, 0.0) + tokens

    def took(self, tokens: int, seconds: float) -> None:
        """What a step told about the device's rate."""
        if seconds > 0 and tokens > 0:
            self._rates = [*self._rates[-8:], tokens / seconds]
            step_seconds = self._step_tokens / sorted(self._rates)[len(self._rates) // 2]
            self._half_life = min(MAX_HALF_LIFE, STEPS_TO_HALF * step_seconds)

    def _level(self, tenants: set[str]) -> None:
        known = [self._tokens[tenant] for tenant in tenants if tenant in self._tokens]
        least = min(known, default=0.0)
        self._tokens = {tenant: self._tokens.get(tenant, least) for tenant in tenants}

    def _left(self, job: Job, now: float) -> float:
        """The logarithm of what a job counts as."""
        halved = (now - job.arrived) / self._half_life - HALVES_A_PRIORITY * job.share.priority
        return math.log2(max(1, job.tokens_left)) - halved
