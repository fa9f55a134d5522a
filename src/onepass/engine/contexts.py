"""Contexts kept on the device: token ids to keys and values, within a byte budget, least recently used out first.

A handle names a kept context until it is released, expires or (unless pinned) is evicted; using it after that is an
error, never a quiet recomputation. Computing contexts is the engine's work.
"""

import math
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import numpy as np

from onepass.engine.encode import Ids
from onepass.errors import ContextNotFound, DoesNotFit

SHORTEST_REUSE = 16  # a common beginning shorter than this is not worth a special prefill


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

    @property
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
    array: np.ndarray
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
        self.evictions = 0

    @property
    def bytes(self) -> int:
        with self._lock:
            return self._bytes()

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
        wanted = np.array(ids, np.int32)
        best: tuple[KeptContext, int] | None = None
        with self._lock:
            for held in self._held.values():
                common = min(_common(wanted, held.array), len(ids) - 1)
                if common >= SHORTEST_REUSE and (best is None or common > best[1]):
                    best = held.context, common
        return best

    def put(self, context: KeptContext) -> None:
        """Keep it if the budget allows, evicting others that are not pinned."""
        with self._lock:
            if (held := self._held.get(context.ids)) is not None:
                self._use(held)
                return
            if not self._make_room(context.bytes):
                return
            self._held[context.ids] = _Held(context, np.array(context.ids, np.int32))

    def open(self, ids: Ids, ttl_seconds: float, pin: bool) -> ContextHandle:
        """A handle on a kept context."""
        with self._lock:
            self._expire()
            held = self._held.get(ids)
            if held is None:
                raise DoesNotFit(
                    f"the context of {len(ids):,} tokens does not fit the cache: the budget is {self.budget:,} bytes, "
                    f"{self._bytes():,} are in use by pinned contexts and others"
                )
            expires = self._clock() + ttl_seconds
            handle = ContextHandle(f"ctx-{secrets.token_hex(12)}", len(ids), held.context.bytes, expires, pin)
            held.handles[handle.id] = handle
            return handle

    def get(self, handle_id: str) -> tuple[ContextHandle, KeptContext]:
        with self._lock:
            self._expire()
            for held in self._held.values():
                if handle_id in held.handles:
                    self._use(held)
                    return held.handles[handle_id], held.context
        raise ContextNotFound(f"context {handle_id!r} is unknown, released, evicted or expired")

    def release(self, handle_id: str) -> None:
        with self._lock:
            self._expire()
            for held in self._held.values():
                if held.handles.pop(handle_id, None) is not None:
                    return
        raise ContextNotFound(f"context {handle_id!r} is unknown, released, evicted or expired")

    def clear(self) -> None:
        with self._lock:
            self._held.clear()

    def _use(self, held: _Held) -> None:
        """Now the most recently used."""
        self._held[held.context.ids] = self._held.pop(held.context.ids)

    def _bytes(self) -> int:
        return sum(held.context.bytes for held in self._held.values())

    def _expire(self) -> None:
        now = self._clock()
        for held in self._held.values():
            for handle in [h for h in held.handles.values() if h.expires_at <= now]:
                del held.handles[handle.id]

    def _make_room(self, needed: int) -> bool:
        self._expire()
        pinned = sum(held.context.bytes for held in self._held.values() if held.pinned)
        if pinned + needed > self.budget:
            return False  # evicting the others would not help
        used = self._bytes()
        for ids in [ids for ids, held in self._held.items() if not held.pinned]:
            if used + needed <= self.budget:
                break
            used -= self._held.pop(ids).context.bytes
            self.evictions += 1
        return used + needed <= self.budget


def _held_bytes(array: jax.Array) -> int:
    sharding = getattr(array, "sharding", None)
    shape = array.shape if sharding is None else sharding.shard_shape(array.shape)
    return math.prod(shape) * array.dtype.itemsize


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading elements are equal."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n
