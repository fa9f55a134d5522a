"""Threads that bring requests, beside the one that feeds the device: who waits for whom.

They share Python's lock. Left to it, callers compute between any two calls of the engine's thread into JAX, and a
launch of 2 ms takes 3 to 9; and the first of a burst of small requests is launched alone.
"""

import threading

# How long a caller gives way at most: a launch takes a few milliseconds, unless it compiles.
GIVE_WAY_SECONDS = 0.005


class LaunchGate:
    """`with callers:` around what a caller does to bring one request; `with callers.giving_way:` around what the
    engine's thread does for the device."""

    def __init__(self) -> None:
        self.giving_way = GivingWay()
        self._lock = threading.Lock()
        self._coming = 0

    @property
    def coming(self) -> bool:
        """Whether a request is being made ready at this moment."""
        return self._coming > 0

    def __enter__(self) -> None:
        self.giving_way.wait()
        with self._lock:
            self._coming += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._coming -= 1


class GivingWay:
    """Held by the engine's thread; callers wait for its end, and not for long."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._over.set()
        self._thread: int | None = None

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        self._over.clear()

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def wait(self) -> None:
        """Until the engine's thread is done; callbacks of results run on that thread itself, and may ask for more."""
        if not self._over.is_set() and threading.get_ident() != self._thread:
            self._over.wait(GIVE_WAY_SECONDS)
