"""Who may wait: a budget of tokens, requests and seconds. A request beyond it is refused at once, with a time to retry.

The seconds are what the waiting tokens will take, by the rate at which this server has computed so far: a million
tokens are two seconds of a GPU and three quarters of an hour of two cores.

With several API keys no key may hold more than half of the budget while others are there to ask. What runs first among
those admitted is the engine's choice.
"""

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from onepass.errors import Overloaded, RequestError, TooLong

MAX_SCORES = 1 << 21  # of one request: some 100 MB while it is answered
MAX_BUDGETS = 16  # how many times the queue's tokens one request may have
MEMORY_SECONDS = 60.0  # of work: how far back the rate of service looks
LARGEST_PART = 0.25  # of the seconds that may wait, which one request counts for at most
BELIEVED_AFTER = 5.0  # seconds of work that a rate must rest on to refuse by it


@dataclass(frozen=True)
class Budget:
    """What may be in the server at a time, waiting or running."""

    tokens: int
    requests: int
    seconds: float = 120.0  # that the waiting tokens may be expected to take


class Admission:
    def __init__(self, budget: Budget, num_keys: int = 0) -> None:
        self.budget = budget
        self._share = 0.5 if num_keys > 1 else 1.0
        self._tokens: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._waiting: dict[object, int] = {}  # tokens of each request
        self._served = 0.0  # tokens, and the seconds of work they took, both fading
        self._busy = 0.0
        self._counted = time.monotonic()  # until when `_busy` is counted

    @property
    def requests(self) -> int:
        return self._requests.total()

    @property
    def tokens(self) -> int:
        return self._tokens.total()

    def check_room(self, key: str) -> None:
        """Raises when a request would be refused whatever it holds: known before its body is read, so that refusing
        costs next to nothing."""
        self._check_requests(key)
        held, most = self.tokens, self.budget.tokens
        if held >= most or self._tokens[key] >= most * self._share:
            raise Overloaded(f"{held:,} tokens are waiting; at most {most:,} may", self._wait_for(1))
        self._check_wait()

    @contextmanager
    def request(self, key: str) -> Iterator[None]:
        """A place for a request, from before it is tokenised until it is answered."""
        self._check_requests(key)
        self._requests[key] += 1
        try:
            yield
        finally:
            self._requests[key] -= 1

    def _check_requests(self, key: str) -> None:
        most = self.budget.requests
        if self.requests >= most or self._requests[key] >= most * self._share:
            raise Overloaded(
                f"{self.requests:,} requests are being served, {self._requests[key]:,} of them yours; "
                f"at most {most:,} may be, of one key {int(most * self._share):,}",
                self._wait_for(self.tokens),
            )

    def _check_wait(self) -> None:
        wait, most = self.expected_wait, self.budget.seconds
        if wait > most:
            raise Overloaded(
                f"{self.tokens:,} tokens are waiting, which takes this server about {wait:.0f} s; at most {most:g} s "
                "of work may wait",
                self._wait_for(int((wait - most) * self._rate)),
            )

    @property
    def expected_wait(self) -> float:
        """Seconds that the tokens in the server will take; 0 while the server's rate is not known. A large request
        counts for a part only: the engine lets smaller ones pass it."""
        rate = self._rate
        if rate <= 0 or self._busy < BELIEVED_AFTER:
            return 0.0
        most = LARGEST_PART * self.budget.seconds * rate
        return sum(min(tokens, most) for tokens in self._waiting.values()) / rate

    @property
    def _rate(self) -> float:
        """Tokens a second, while there was work."""
        return self._served / self._busy if self._busy > 0 else 0.0

    def check_size(self, tokens: int, scores: int) -> None:
        """Raises for a request that is too large whether or not others wait: it would keep the engine for hours, or its
        answer the memory."""
        if scores > MAX_SCORES:
            raise RequestError(
                "too_many_scores",
                f"items times labels must be at most {MAX_SCORES:,}; got {scores:,}. Send several requests",
                "items",
            )
        limit = MAX_BUDGETS * self.budget.tokens
        if tokens > limit:
            raise TooLong(
                f"the request has {tokens:,} tokens to compute; the limit is {limit:,}. Send several requests",
                "items",
            )

    @contextmanager
    def work(self, key: str, tokens: int) -> Iterator[None]:
        """Room for a request's tokens. One that is larger than the whole budget may run when nothing else does."""
        held, most = self.tokens, self.budget.tokens
        if held and (held + tokens > most or self._tokens[key] + tokens > most * self._share):
            raise Overloaded(
                f"the request has {tokens:,} tokens to compute and {held:,} are waiting, {self._tokens[key]:,} of them "
                f"yours; at most {most:,} may wait, of one key {int(most * self._share):,}",
                self._wait_for(held + tokens - most),
            )
        self._check_wait()
        if not held:
            self._counted = time.monotonic()  # nobody was served before, for nobody asked
        self._tokens[key] += tokens
        place, served = object(), 0
        self._waiting[place] = tokens
        try:
            yield
            served = tokens
        finally:
            del self._waiting[place]
            self._tokens[key] -= tokens
            self._count(served)

    def _count(self, served: int) -> None:
        """A request has left. What was cancelled or failed took time, but is not known to be computed."""
        now = time.monotonic()
        passed = now - self._counted
        fading = math.exp(-passed / MEMORY_SECONDS)
        self._served = fading * self._served + served
        self._busy = fading * self._busy + passed
        self._counted = now

    def _wait_for(self, tokens: int) -> float:
        """Seconds until about this many tokens will have been served."""
        return min(60.0, max(1.0, tokens / self._rate)) if self._rate > 0 else 1.0
