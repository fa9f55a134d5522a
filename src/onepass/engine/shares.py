"""Whose turn it is: equal shares of the device between tenants; of a tenant, the least left to do first, with ageing.

A tenant's service is counted in tokens given to the device; one that comes back after a pause starts level with the
others, so that nobody saves up. What a turn consists of is `steps`.
"""

import time
from collections.abc import Callable, Sequence

from onepass.engine.job import Job, PrefillJob

AGEING_SECONDS = 0.25  # waiting this long counts as much as one step's worth fewer tokens left
STEPS_A_PRIORITY = 8  # one level of priority counts as much as this many steps' worth of tokens: two seconds of ageing

Waiting = Job | PrefillJob


class Shares:
    def __init__(self, step_tokens: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._step_tokens = step_tokens
        self._clock = clock
        self._tokens: dict[str, float] = {}  # served so far, by tenant, of those that have work

    def in_order(self, jobs: Sequence[Waiting]) -> list[Waiting]:
        """The most urgent first."""
        self._level({job.share.tenant for job in jobs})
        now = self._clock()
        return sorted(jobs, key=lambda job: (self._tokens[job.share.tenant], self._left(job, now)))

    def served(self, tenant: str, tokens: int) -> None:
        self._tokens[tenant] = self._tokens.get(tenant, 0.0) + tokens

    def _level(self, tenants: set[str]) -> None:
        known = [self._tokens[tenant] for tenant in tenants if tenant in self._tokens]
        least = min(known, default=0.0)
        self._tokens = {tenant: self._tokens.get(tenant, least) for tenant in tenants}

    def _left(self, job: Waiting, now: float) -> float:
        waited = (now - job.arrived) / AGEING_SECONDS - STEPS_A_PRIORITY * job.share.priority
        return job.tokens_left - self._step_tokens * waited
