"""Contexts and program counts of several engines, seen as those of one: `ReplicaContexts` and `ReplicaRunners`."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from onepass.api import ContextHandle
from onepass.engine.contexts.cache import CachedContext
from onepass.engine.encoding.ids import Ids
from onepass.engine.engine import Engine
from onepass.engine.programs.builder import ProgramBuilder
from onepass.engine.programs.compiled import CompiledProgram
from onepass.errors import ContextNotFound
from onepass.loading.tensor_reader import Progress, silent


class ReplicaContexts:
    """The contexts of all engines, each in the engine that computed it."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._caches = [engine.contexts for engine in engines]
        self.budget = sum(cache.budget for cache in self._caches)

    @property
    def bytes(self) -> int:
        return sum(cache.bytes for cache in self._caches)

    @property
    def peak_bytes(self) -> int:
        return sum(cache.peak_bytes for cache in self._caches)

    @property
    def evictions(self) -> int:
        return sum(cache.evictions for cache in self._caches)

    def __len__(self) -> int:
        return sum(map(len, self._caches))

    def open(self, ids: Ids, ttl_seconds: float, pin: bool) -> ContextHandle:
        kept = next((cache for cache in self._caches if cache.find(ids) is not None), self._caches[0])
        return kept.open(ids, ttl_seconds, pin)

    def home(self, handle_id: str) -> int:
        """The number of the engine that has it."""
        for at, cache in enumerate(self._caches):
            try:
                cache.get(handle_id)
            except ContextNotFound:
                continue
            return at
        raise ContextNotFound(f"context {handle_id!r} is unknown, released, evicted or expired")

    def get(self, handle_id: str) -> tuple[ContextHandle, CachedContext]:
        return self._caches[self.home(handle_id)].get(handle_id)

    def release(self, handle_id: str) -> None:
        self._caches[self.home(handle_id)].release(handle_id)

    def clear(self) -> None:
        for cache in self._caches:
            cache.clear()


class ReplicaRunners:
    """The counts of all engines' programs."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._runners = [engine.runner for engine in engines]

    @property
    def compilations(self) -> int:
        return sum(runner.compilations for runner in self._runners)

    @property
    def compiling(self) -> int:
        return sum(runner.compiling for runner in self._runners)

    @property
    def builder(self) -> ProgramBuilder:
        return self._runners[0].builder

    def compile_all(self, progress: Progress = silent) -> list[CompiledProgram]:
        with ThreadPoolExecutor(len(self._runners), "onepass-replicas") as pool:
            shown = [progress] + [silent] * (len(self._runners) - 1)
            every = list(pool.map(lambda runner, show: runner.compile_all(show), self._runners, shown))
        return every[0]
