"""Whose turn it is: equal shares of the device between tenants; of a tenant, the least left to do first, with ageing.

A tenant's service is counted in tokens given to the device; one that comes back after a pause starts level with the
others, so that nobody saves up. What a turn consists of is `steps`.
"""

import time
from collections.abc import Callable, Sequence

from onepass.engine.job import Job, PrefillJob

# While a job waits, it counts as if its tokens became fewer at this share of the rate at which the device computes.
# Small requests then go first on a slow device too, and a large one is overtaken by ten times its own work at most.
AGEING_SHARE = 0.1
AGEING_SECONDS = 0.25  # for a step's worth of tokens, before the device's rate is known
STEPS_A_PRIORITY = 8  # one level of priority counts as much as this many steps' worth of tokens

Waiting = Job | PrefillJob


class Shares:
    def __init__(self, step_tokens: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._step_tokens = step_tokens
        self._ageing = step_tokens / AGEING_SECONDS  # tokens a second
        self._clock = clock
        self._rates: list[float] = []
        self._tokens: dict[str, float] = {}  # served so far, by tenant, of those that have work

    def in_order(self, jobs: Sequence[Waiting]) -> list[Waiting]:
        """The most urgent first."""
        self._level({job.share.tenant for job in jobs})
        now = self._clock()
        return sorted(jobs, key=lambda job: (self._tokens[job.share.tenant], self._left(job, now)))

    def served(self, tenant: str, tokens: int) -> None:
        self._tokens[tenant] = self._tokens.get(tenant, 0.0) + tokens

    def took(self, tokens: int, seconds: float) -> None:
        """What a step told about the device's rate."""
        if seconds > 0 and tokens > 0:
            self._rates = [*self._rates[-8:], tokens / seconds]
            self._ageing = AGEING_SHARE * sorted(self._rates)[len(self._rates) // 2]

    def _level(self, tenants: set[str]) -> None:
        known = [self._tokens[tenant] for tenant in tenants if tenant in self._tokens]
        least = min(known, default=0.0)
        self._tokens = {tenant: self._tokens.get(tenant, least) for tenant in tenants}

    def _left(self, job: Waiting, now: float) -> float:
        urgent = STEPS_A_PRIORITY * self._step_tokens * job.share.priority
        return job.tokens_left + urgent - self._ageing * (now - job.arrived)
