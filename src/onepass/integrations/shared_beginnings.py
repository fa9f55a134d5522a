"""The order in which contexts are sent, so that a long beginning which several have in common is computed once.

The engine reuses a beginning only from a context that it has computed. So of the contexts with a beginning in common
(few-shot examples) one goes ahead, and the others are sent when it is done. What is sent is `loglikelihood`'s.
"""

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

Ids = tuple[int, ...]

LONG_BEGINNING = 64  # tokens in common that are worth waiting for
# Contexts under way that others wait for: with more, the first ones' pages would be evicted before they are reused.
LEADERS_AT_ONCE = 4


class SendOrder:
    """Numbers of contexts, which must be sorted and differ: `next` is the first that may be sent."""

    def __init__(self, contexts: Sequence[Ids]) -> None:
        self._followers: dict[int, list[int]] = {}
        free = []
        for number, leader in enumerate(leaders(contexts)):
            if leader is None:
                free.append(number)
            else:
                self._followers.setdefault(leader, []).append(number)
        self._leaders = [number for number in free if number in self._followers]
        self._others = [number for number in free if number not in self._followers]
        heapify(self._leaders)
        heapify(self._others)
        self._leading = 0

    def next(self) -> int | None:
        """None where all that is left waits for a context under way."""
        may_lead = self._leaders and self._leading < LEADERS_AT_ONCE
        if may_lead and (not self._others or self._leaders[0] < self._others[0]):
            self._leading += 1
            return heappop(self._leaders)
        return heappop(self._others) if self._others else None

    def done(self, number: int) -> None:
        """A context that was sent is computed, and those that waited for it may be sent."""
        followers = self._followers.get(number)
        if followers is None:
            return
        self._leading -= 1
        for follower in followers:
            heappush(self._leaders if follower in self._followers else self._others, follower)


def leaders(contexts: Sequence[Ids]) -> list[int | None]:
    """For each of these sorted contexts the first one with which it has almost as many tokens in common as with any
    before it; None where that is no long beginning."""
    out: list[int | None] = []
    # Contexts with which the present one has ever more tokens in common: the first of each run, and how many tokens.
    firsts: list[int] = []
    common: list[int] = []
    for number, shared in enumerate(_shared_with_previous(contexts)):
        first = number
        while common and common[-1] >= shared:
            first = firsts.pop()
            common.pop()
        if number:
            firsts.append(min(first, number - 1))
            common.append(shared)
        enough = max(LONG_BEGINNING, shared - LONG_BEGINNING + 1)
        out.append(firsts[bisect_left(common, enough)] if shared >= LONG_BEGINNING else None)
    return out


def _shared_with_previous(contexts: Sequence[Ids]) -> list[int]:
    return [0, *(_tokens_in_common(a, b) for a, b in pairwise(contexts))] if contexts else []


def _tokens_in_common(a: Ids, b: Ids) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
