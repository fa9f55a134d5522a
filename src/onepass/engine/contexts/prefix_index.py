"""Which kept ids share the longest beginning with a request's: ids in sorted order, where it is with a neighbour.

Thousands may be kept, and every request asks: nothing here looks at all of them. What is kept, and for how long, is
`cache`'s.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from onepass.engine.encoding.ids import Ids

MIN_PREFIX_TOKENS = 16  # a common beginning shorter than this is not worth sharing
MIN_PREFIX_BYTES = 4 * MIN_PREFIX_TOKENS


class PrefixIndex:
    """Not locked: its owner is."""

    def __init__(self) -> None:
        self._keys: dict[Ids, bytes] = {}
        self._sorted: list[tuple[bytes, Ids]] = []

    def add(self, ids: Ids) -> None:
        key = self._keys[ids] = _sort_key(ids)
        self._sorted.insert(self._place(key), (key, ids))

    def remove(self, ids: Ids) -> None:
        """Ids that were added."""
        del self._sorted[self._place(self._keys.pop(ids))]

    def longest(self, ids: Ids) -> tuple[Ids, int] | None:
        """The ids with the longest common beginning, and its tokens; None where that is under `MIN_PREFIX_TOKENS`."""
        key = _sort_key(ids)
        at = self._place(key)
        near = self._sorted[max(0, at - 1) : at + 1]
        near = [pair for pair in near if pair[0][:MIN_PREFIX_BYTES] == key[:MIN_PREFIX_BYTES]]
        if not near:
            return None
        common, best = max((_common(key, pair[0]), pair[1]) for pair in near)
        return (best, common) if common >= MIN_PREFIX_TOKENS else None

    def __iter__(self) -> Iterator[Ids]:
        """In order."""
        return (ids for _, ids in self._sorted)

    def _place(self, key: bytes) -> int:
        return bisect_left(self._sorted, (key, ()))


def _sort_key(ids: Ids) -> bytes:
    """Bytes in the order of the ids."""
    return struct.pack(f">{len(ids)}i", *ids)


def _common(a: bytes, b: bytes) -> int:
    """How many leading ids are equal."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(np.frombuffer(a[:n], np.int32) != np.frombuffer(b[:n], np.int32))
    return int(differ[0]) if len(differ) else n // 4
