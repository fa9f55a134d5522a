"""Who may wait: a budget of tokens and of requests, beyond which a request is refused at once with a time to try again.

With several API keys no key may hold more than half of the budget while others are there to ask. What runs first among
those admitted is the engine's choice.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from onepass.errors import Overloaded, RequestError, TooLong

MAX_SCORES = 1 << 21  # of one request: some 100 MB while it is answered
MAX_BUDGETS = 16  # how many times the queue's tokens one request may have
MEMORY_SECONDS = 20.0  # how far back the rate of service looks


@dataclass(frozen=True)
class Budget:
    """What may be in the server at a time, waiting or running."""

    tokens: int
    requests: int


class Admission:
    def __init__(self, budget: Budget, num_keys: int = 0) -> None:
        self.budget = budget
        self._share = 0.5 if num_keys > 1 else 1.0
        self._tokens: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._rate = 0.0  # tokens a second
        self._last_left = time.monotonic()

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
        self._tokens[key] += tokens
        try:
            yield
        finally:
            self._tokens[key] -= tokens
            self._left(tokens)

    def _left(self, tokens: int) -> None:
        """An exponential average of tokens served a second."""
        now = time.monotonic()
        passed = max(now - self._last_left, 1e-6)
        kept = max(0.0, 1.0 - passed / MEMORY_SECONDS)
        self._rate = kept * self._rate + tokens / MEMORY_SECONDS
        self._last_left = now

    def _wait_for(self, tokens: int) -> float:
        """Seconds until about this many tokens will have been served."""
        return min(60.0, max(1.0, tokens / self._rate)) if self._rate > 0 else 1.0
