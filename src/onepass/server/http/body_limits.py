"""How much of requests' bodies is taken: `Limits` of one body, `BodyBudget` of all that are in memory at a time.

Reading a body within them is `body`.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from onepass.errors import Overloaded
from onepass.server.http.memory import release_free_memory

BODIES_AT_ONCE = 4  # of the largest size, or as many more as are smaller
LARGE_BYTES = 1 << 20  # after more, memory goes back to the system
FREED_SECONDS = 1.0


@dataclass(frozen=True)
class Limits:
    """How much of a body is taken. What may run at a time is `admission`'s budget."""

    max_body_bytes: int = 64 << 20  # as sent
    max_decompressed_bytes: int = 128 << 20
    body_seconds: float = 60.0  # from the first byte of the body to its last
    max_entries: int = 1 << 17  # items or documents of one request


class BodyBudget:
    """The bytes of bodies that are in memory at a time, of all requests together, from when they are read until they
    are answered: beyond it a request gets 429. Bodies are decompressed two at a time, for a few kilobytes may ask for
    the whole limit."""

    def __init__(self, limits: Limits) -> None:
        self.most = BODIES_AT_ONCE * limits.max_body_bytes
        self.held = 0
        self.decompressing = asyncio.Semaphore(2)

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """A function that takes so many bytes more, all given back at the end."""
        mine = 0

        def take(count: int) -> None:
            nonlocal mine
            if self.held + count > self.most:
                raise Overloaded(f"the bodies in memory have {self.held:,} bytes; the limit is {self.most:,}", 1.0)
            mine += count
            self.held += count

        try:
            yield take
        finally:
            self.held -= mine
            if mine > LARGE_BYTES:  # what was made of the body is freed shortly after
                loop = asyncio.get_running_loop()
                loop.call_later(FREED_SECONDS, loop.run_in_executor, None, release_free_memory)
