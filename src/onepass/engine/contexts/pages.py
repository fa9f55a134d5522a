"""Which pages of the pool are whose: a free list and a count of holders per page. No arrays.

A page is held by every context that begins with it, by every request that uses it, and by every step in flight that
reads or writes it; it is free when the last of them lets go. Page 0 is nobody's.
"""

import threading
from collections.abc import Iterable, Sequence


class PagePool:
    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.peak = 0  # the most pages that were held at a time: freed pages are given out first, so no other was used
        self._free = list(range(pages - 1, 0, -1))
        self._holders = [0] * pages
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """Pages with one holder; None where there are not so many."""
        with self._lock:
            if count > len(self._free):
                return None
            pages = [self._free.pop() for _ in range(count)]
            for page in pages:
                self._holders[page] = 1
            self.peak = max(self.peak, self.pages - 1 - len(self._free))
            return pages

    def hold(self, pages: Iterable[int]) -> None:
        with self._lock:
            for page in pages:
                assert self._holders[page] > 0, f"page {page} is free"
                self._holders[page] += 1

    def let_go(self, pages: Sequence[int]) -> None:
        with self._lock:
            for page in pages:
                assert self._holders[page] > 0, f"page {page} is free"
                self._holders[page] -= 1
                if not self._holders[page]:
                    self._free.append(page)
