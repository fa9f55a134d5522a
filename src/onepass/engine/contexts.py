"""Contexts kept on the device: token ids to keys and values, within a byte budget, least recently used out first.

A handle names a kept context until it is released, expires or (unless pinned) is evicted; using it after that is an
error, never a quiet recomputation. Computing contexts is the engine's work.

Thousands may be kept, and every request asks: nothing here looks at all of them. Ids are also kept sorted, where the
longest common beginning is with a neighbour.
"""

import heapq
import math
import secrets
import struct
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import jax
import numpy as np

from onepass.engine.ids import Ids
from onepass.errors import ContextNotFound, DoesNotFit

SHORTEST_REUSE = 16  # a common beginning shorter than this is not worth a special prefill
SHORTEST = 4 * SHORTEST_REUSE  # in bytes


@dataclass(frozen=True)
class KeptContext:
    """Keys and values of a context, padded to `width` keys; immutable, so any number of requests may use it."""

    ids: Ids
    k: jax.Array
    v: jax.Array
    hidden: jax.Array

    @property
    def width(self) -> int:
        return int(self.k.shape[1])

    @cached_property
    def bytes(self) -> int:
        """On each of the devices that share it."""
        return sum(map(_held_bytes, (self.k, self.v, self.hidden)))


@dataclass(frozen=True)
class ContextHandle:
    id: str
    tokens: int
    bytes: int
    expires_at: float  # seconds since the epoch
    pinned: bool


@dataclass
class _Held:
    context: KeptContext
    sorted_as: bytes
    handles: dict[str, ContextHandle] = field(default_factory=dict)

    @property
    def pinned(self) -> bool:
        return any(handle.pinned for handle in self.handles.values())


class ContextCache:
    def __init__(self, budget: int, clock: Callable[[], float] = time.time) -> None:
        self.budget = budget
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[Ids, _Held] = {}  # in order of use, oldest first
        self._sorted: list[tuple[bytes, Ids]] = []
        self._named: dict[str, _Held] = {}  # by handle
        self._ends: list[tuple[float, str]] = []  # when a handle expires: a heap; some are released by then
        self._used = 0
        self.evictions = 0

    @property
    def bytes(self) -> int:
        return self._used

    def __len__(self) -> int:
        return len(self._held)

    def find(self, ids: Ids) -> KeptContext | None:
        """The context of exactly these ids."""
        with self._lock:
            held = self._held.get(ids)
            if held is None:
                return None
            self._use(held)
            return held.context

    def nearest(self, ids: Ids) -> tuple[KeptContext, int] | None:
        """The kept context that shares the longest beginning with `ids`, and how many tokens of it can be reused.
        The last token of `ids` is always left to compute: its hidden state is not kept for beginnings."""
        wanted = _sortable(ids)
        with self._lock:
            at = bisect_left(self._sorted, (wanted, ()))
            beside = [one for one in self._sorted[max(0, at - 1) : at + 1] if one[0][:SHORTEST] == wanted[:SHORTEST]]
            if not beside:
                return None
            best = max((_common(wanted, one[0]), one[1]) for one in beside)
            common = min(best[0], len(ids) - 1)
            return (self._held[best[1]].context, common) if common >= SHORTEST_REUSE else None

    def put(self, context: KeptContext) -> None:
        """Keep it if the budget allows, evicting others that are not pinned."""
        with self._lock:
            if (held := self._held.get(context.ids)) is not None:
                self._use(held)
                return
            if not self._make_room(context.bytes):
                return
            held = self._held[context.ids] = _Held(context, _sortable(context.ids))
            self._used += context.bytes
            self._sorted.insert(self._place(held), (held.sorted_as, context.ids))

    def open(self, ids: Ids, ttl_seconds: float, pin: bool) -> ContextHandle:
        """A handle on a kept context."""
        with self._lock:
            self._expire()
            held = self._held.get(ids)
            if held is None:
                raise DoesNotFit(
                    f"the context of {len(ids):,} tokens does not fit the cache: the budget is {self.budget:,} bytes, "
                    f"{self._used:,} are in use by pinned contexts and others"
                )
            expires = self._clock() + ttl_seconds
            handle = ContextHandle(f"ctx-{secrets.token_hex(12)}", len(ids), held.context.bytes, expires, pin)
            held.handles[handle.id] = handle
            self._named[handle.id] = held
            heapq.heappush(self._ends, (expires, handle.id))
            return handle

    def get(self, handle_id: str) -> tuple[ContextHandle, KeptContext]:
        with self._lock:
            held = self._named_by(handle_id)
            self._use(held)
            return held.handles[handle_id], held.context

    def release(self, handle_id: str) -> None:
        with self._lock:
            self._forget(handle_id, self._named_by(handle_id))

    def clear(self) -> None:
        with self._lock:
            for held in list(self._held.values()):
                self._drop(held)

    def _named_by(self, handle_id: str) -> _Held:
        self._expire()
        if handle_id not in self._named:
            raise ContextNotFound(f"context {handle_id!r} is unknown, released, evicted or expired")
        return self._named[handle_id]

    def _forget(self, handle_id: str, held: _Held) -> None:
        del held.handles[handle_id], self._named[handle_id]

    def _place(self, held: _Held) -> int:
        return bisect_left(self._sorted, (held.sorted_as, ()))

    def _drop(self, held: _Held) -> None:
        del self._held[held.context.ids], self._sorted[self._place(held)]
        self._used -= held.context.bytes
        for handle_id in list(held.handles):
            self._forget(handle_id, held)

    def _use(self, held: _Held) -> None:
        """Now the most recently used."""
        self._held[held.context.ids] = self._held.pop(held.context.ids)

    def _expire(self) -> None:
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            _, handle_id = heapq.heappop(self._ends)
            if handle_id in self._named:
                self._forget(handle_id, self._named[handle_id])

    def _make_room(self, needed: int) -> bool:
        self._expire()
        if self._used + needed <= self.budget:
            return True
        pinned = {id(held): held.context.bytes for held in self._named.values() if held.pinned}
        if sum(pinned.values()) + needed > self.budget:
            return False  # evicting the others would not help
        while self._used + needed > self.budget:
            self._drop(next(held for held in self._held.values() if not held.pinned))
            self.evictions += 1
        return True


def _held_bytes(array: jax.Array) -> int:
    sharding = getattr(array, "sharding", None)
    shape = array.shape if sharding is None else sharding.shard_shape(array.shape)
    return math.prod(shape) * array.dtype.itemsize


def _sortable(ids: Ids) -> bytes:
    """Bytes in the order of the ids."""
    return struct.pack(f">{len(ids)}i", *ids)


def _common(a: bytes, b: bytes) -> int:
    """How many leading ids are equal."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(np.frombuffer(a[:n], np.int32) != np.frombuffer(b[:n], np.int32))
    return int(differ[0]) if len(differ) else n // 4
