"""Threads on which texts are tokenised: some for small requests, others for large ones, so that small never wait.

Tokenising releases the interpreter's lock (`loading.tokenizer`), in pieces between which a caller who is gone, or
whose time is over, ends it. Afterwards a large request's memory goes back to the system (`memory`).
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from onepass.api import ScoreRequest
from onepass.engine.encoding.text_limits import text_size
from onepass.errors import DeadlineExceeded
from onepass.server.http.memory import release_free_memory

LARGE_CHARS = 1 << 17  # about 50 ms of work
FEW_TEXTS = 256  # so many at most are looked up without a thread, where their words are known
DEADLINE_PASSED = "the request's own time limit has passed"


class Abandoned(Exception):
    """Nobody waits for the result any more."""


class TokenizerThreads:
    def __init__(self, small: int = 4, large: int = 2) -> None:
        self._small = ThreadPoolExecutor(small, "onepass-encode")
        self._large = ThreadPoolExecutor(large, "onepass-encode-large")

    async def run[T](self, work: Callable[[Callable[[], None]], T], size: int, deadline: float | None = None) -> T:
        """`work` is called with a function that raises when it need not go on; `size` is its texts' characters."""
        abandoned = threading.Event()

        def check() -> None:
            if abandoned.is_set():
                raise Abandoned
            if deadline is not None and time.monotonic() > deadline:
                raise DeadlineExceeded(DEADLINE_PASSED)

        def run() -> T:
            check()
            try:
                return work(check)
            finally:
                if size > LARGE_CHARS:
                    release_free_memory()

        threads = self._large if size > LARGE_CHARS else self._small
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, run)
        finally:
            abandoned.set()

    def stop(self) -> None:
        for threads in (self._small, self._large):
            threads.shutdown(wait=False, cancel_futures=True)


def request_size(request: ScoreRequest) -> int:
    """Characters of a request's texts; token ids count little."""
    parts = (request.query, request.messages, request.items, request.labels, request.continuations)
    return sum(map(text_size, parts))
