"""The engine processes together: whether any is ready, which is least busy, and the sums of their counts.

A process alone is `process`; what is asked of them is `client`.
"""

import asyncio
from collections.abc import Sequence

from onepass.errors import EngineUnavailable
from onepass.server.engines.process import EngineProcess
from onepass.server.engines.service import Health, Served

# Metrics, and what the engines call them.
STATS = {
    "engine_steps": "steps",
    "engine_rows": "rows",
    "engine_compilations": "compilations",
    "engine_compiling": "compiling",
    "engine_device_seconds": "device_seconds",
    "engine_padding_flops_done": "flops_done",
    "engine_padding_flops_needed": "flops_needed",
    "cache_bytes": "cache_bytes",
    "cache_budget_bytes": "cache_budget_bytes",
    "cache_peak_bytes": "cache_peak_bytes",
    "cache_contexts": "cache_contexts",
    "cache_evictions": "cache_evictions",
    "cache_hit_tokens": "hit_tokens",
}


class EngineSet:
    def __init__(self, links: Sequence[EngineProcess]) -> None:
        self.links = tuple(links)

    @property
    def restarts(self) -> int:
        return sum(link.standing.restarts for link in self.links)

    @property
    def served(self) -> Served | None:
        """As an engine said it that is there."""
        return next((link.served for link in self.links if link.served is not None), None)

    @property
    def reason(self) -> str:
        return self.links[0].standing.reason

    def best_health(self) -> Health:
        """Of a process that is ready, if there is one."""
        return min((link.health() for link in self.links), key=lambda health: not health.ready)

    def stats(self) -> dict[str, float]:
        return {metric: sum(link.stats.get(name, 0) for link in self.links) for metric, name in STATS.items()}

    def check_ready(self) -> None:
        self.least_busy()

    def least_busy(self) -> EngineProcess:
        ready = [link for link in self.links if link.ready]
        if not ready:
            raise EngineUnavailable(f"no engine is ready: {self.reason}", 5.0)
        return min(ready, key=lambda link: link.calls_out)

    async def stop(self) -> None:
        await asyncio.gather(*(link.stop() for link in self.links))
