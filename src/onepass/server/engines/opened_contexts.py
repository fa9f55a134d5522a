"""Handles of kept contexts, each tied to the engine process that holds it.

A process that was started again has lost its contexts: their handles are unknown from then on.
"""

import time
from dataclasses import dataclass

from onepass.engine.encoding.ids import Ids
from onepass.errors import ContextNotFound
from onepass.server.engines.process import EngineProcess


@dataclass(frozen=True)
class OpenedContext:
    """A context handle: the process that holds it, and the ids it stands for."""

    link: EngineProcess
    life: int
    ids: Ids
    expires_at: float = float("inf")  # known once the engine has answered

    @property
    def lost(self) -> bool:
        return self.life != self.link.lives


class OpenedContexts:
    def __init__(self) -> None:
        self._opened: dict[str, OpenedContext] = {}

    def find(self, context_id: str) -> OpenedContext:
        opened = self._opened.get(context_id)
        if opened is None or opened.lost:
            self._opened.pop(context_id, None)
            raise ContextNotFound(f"context {context_id!r} is unknown, released, evicted or expired")
        return opened

    def add(self, context_id: str, opened: OpenedContext) -> None:
        """And forget those that have expired, and those of processes that are gone."""
        now = time.time()
        self._opened = {
            name: opened for name, opened in self._opened.items() if not opened.lost and opened.expires_at > now
        }
        self._opened[context_id] = opened

    def remove(self, context_id: str) -> None:
        del self._opened[context_id]
