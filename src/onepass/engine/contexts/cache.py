"""Contexts kept on the device: token ids to pages of the pool, least recently used out first, within a byte budget.

A handle names a kept context until it is released, expires or (unless pinned) is evicted; using it after that is an
error, never a quiet recomputation. Contexts with a common beginning share its whole pages. Computing contexts is the
scheduler's work; which context shares the longest beginning is `prefix_index`'s. Nothing here looks at all contexts:
thousands may be kept, and every request asks.
"""

import heapq
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from onepass.api import ContextHandle
from onepass.engine.contexts.pages import PagePool
from onepass.engine.contexts.prefix_index import PrefixIndex
from onepass.engine.encoding.ids import Ids
from onepass.errors import ContextNotFound, DoesNotFit


@dataclass(frozen=True)
class CachedContext:
    """A context's ids and the pages that hold its keys and values, in order."""

    ids: Ids
    pages: tuple[int, ...]


@dataclass
class _Entry:
    context: CachedContext
    handles: dict[str, ContextHandle] = field(default_factory=dict)

    @property
    def pinned(self) -> bool:
        return any(handle.pinned for handle in self.handles.values())


class ContextCache:
    """`page_bytes` are those of one page on each of the devices that share it."""

    def __init__(
        self,
        budget: int,
        pool: PagePool,
        page_tokens: int,
        page_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.budget = budget
        self.page_bytes = page_bytes
        self._pool = pool
        self._page_tokens = page_tokens
        self._clock = clock
        self._lock = threading.RLock()
        self._entries: dict[Ids, _Entry] = {}  # in order of use, oldest first
        self._prefixes = PrefixIndex()
        self._named: dict[str, _Entry] = {}  # by handle
        self._ends: list[tuple[float, str]] = []  # when a handle expires: a heap; some are released by then
        self._pages: Counter[int] = Counter()  # pages of kept contexts, and of how many
        self.evictions = 0

    @property
    def bytes(self) -> int:
        return len(self._pages) * self.page_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that contexts and requests have held of the pool at a time."""
        return self._pool.peak * self.page_bytes

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, ids: Ids) -> CachedContext | None:
        """The context of exactly these ids."""
        with self._lock:
            entry = self._entries.get(ids)
            if entry is None:
                return None
            self._use(entry)
            return entry.context

    def hold(self, ids: Ids) -> CachedContext | None:
        """As `find`, and its pages are held for the caller, who lets them go."""
        with self._lock:
            context = self.find(ids)
            if context is not None:
                self._pool.hold(context.pages)
            return context

    def longest_prefix(self, ids: Ids) -> tuple[CachedContext, int] | None:
        """The kept context that shares the longest beginning with `ids`, and how many tokens of it can be used."""
        with self._lock:
            if (entry := self._entries.get(ids)) is not None:  # the index leaves out those of a few tokens
                return entry.context, len(ids)
            nearest = self._prefixes.longest(ids)
            return None if nearest is None else (self._entries[nearest[0]].context, nearest[1])

    def hold_prefix(self, ids: Ids) -> tuple[CachedContext, int] | None:
        """As `longest_prefix`, with the pages of the common beginning held for the caller."""
        with self._lock:
            nearest = self.longest_prefix(ids)
            if nearest is None:
                return None
            context, common = nearest
            used = context.pages[: -(-common // self._page_tokens)]
            self._use(self._entries[context.ids])
            self._pool.hold(used)
            return CachedContext(context.ids[:common], used), common

    def put(self, context: CachedContext) -> bool:
        """Keep it if the budget allows, evicting others that are not pinned."""
        with self._lock:
            if (entry := self._entries.get(context.ids)) is not None:
                self._use(entry)
                return True
            if not self._make_room(context):
                return False
            self._entries[context.ids] = _Entry(context)
            self._pool.hold(context.pages)
            self._pages.update(context.pages)
            self._prefixes.add(context.ids)
            return True

    def drop(self, context: CachedContext) -> None:
        """Forget a context whose pages turned out to be wrong."""
        with self._lock:
            entry = self._entries.get(context.ids)
            if entry is not None and entry.context.pages == context.pages:
                self._drop(entry)

    def evict_for(self, pages: int) -> bool:
        """Evict what is not pinned until so many pages of the pool are free; False where that does not suffice."""
        with self._lock:
            self._expire()
            for entry in list(self._entries.values()):
                if self._pool.free >= pages:
                    break
                if not entry.pinned:
                    self._drop(entry)
                    self.evictions += 1
            return self._pool.free >= pages

    def open(self, ids: Ids, ttl_seconds: float, pin: bool) -> ContextHandle:
        """A handle on a kept context."""
        with self._lock:
            self._expire()
            entry = self._entries.get(ids)
            if entry is None:
                raise DoesNotFit(
                    f"the context of {len(ids):,} tokens does not fit the cache: the budget is {self.budget:,} bytes, "
                    f"{self.bytes:,} are in use by pinned contexts and others"
                )
            expires = self._clock() + ttl_seconds
            size = len(entry.context.pages) * self.page_bytes
            handle = ContextHandle(f"ctx-{secrets.token_hex(12)}", len(ids), size, expires, pin)
            entry.handles[handle.id] = handle
            self._named[handle.id] = entry
            heapq.heappush(self._ends, (expires, handle.id))
            return handle

    def get(self, handle_id: str) -> tuple[ContextHandle, CachedContext]:
        with self._lock:
            entry = self._named_by(handle_id)
            self._use(entry)
            return entry.handles[handle_id], entry.context

    def hold_handle(self, handle_id: str) -> CachedContext:
        """The context of a handle, its pages held for the caller."""
        with self._lock:
            _, context = self.get(handle_id)
            self._pool.hold(context.pages)
            return context

    def release(self, handle_id: str) -> None:
        with self._lock:
            self._forget(handle_id, self._named_by(handle_id))

    def clear(self) -> None:
        with self._lock:
            for entry in list(self._entries.values()):
                self._drop(entry)

    def _named_by(self, handle_id: str) -> _Entry:
        self._expire()
        if handle_id not in self._named:
            raise ContextNotFound(f"context {handle_id!r} is unknown, released, evicted or expired")
        return self._named[handle_id]

    def _forget(self, handle_id: str, entry: _Entry) -> None:
        del entry.handles[handle_id], self._named[handle_id]

    def _drop(self, entry: _Entry) -> None:
        del self._entries[entry.context.ids]
        self._prefixes.remove(entry.context.ids)
        for page in entry.context.pages:
            self._pages[page] -= 1
            if not self._pages[page]:
                del self._pages[page]
        self._pool.let_go(entry.context.pages)
        for handle_id in list(entry.handles):
            self._forget(handle_id, entry)

    def _use(self, entry: _Entry) -> None:
        """Now the most recently used."""
        self._entries[entry.context.ids] = self._entries.pop(entry.context.ids)

    def _expire(self) -> None:
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            _, handle_id = heapq.heappop(self._ends)
            if handle_id in self._named:
                self._forget(handle_id, self._named[handle_id])

    def _make_room(self, context: CachedContext) -> bool:
        """Within the budget, counting a page that several contexts share once."""
        self._expire()

        def over(kept: Container[int], count: int) -> bool:
            fresh = sum(page not in kept for page in context.pages)
            return (count + fresh) * self.page_bytes > self.budget

        if not over(self._pages, len(self._pages)):
            return True
        pinned = {page for entry in self._named.values() if entry.pinned for page in entry.context.pages}
        if over(pinned, len(pinned)):
            return False  # evicting the others would not help
        while over(self._pages, len(self._pages)):
            self._drop(next(entry for entry in self._entries.values() if not entry.pinned))
            self.evictions += 1
        return True
