"""Two ways to send requests for a while: so many clients that each wait for their answer, or arrivals at a rate.

In the open loop arrivals are Poisson and latency counts from when a request was due, so that a slow server cannot slow
its own measurement down. What came of it is `window`; a search for the best rate is `ramp`.
"""

import asyncio
import gc
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from onepass.bench.online.connection import TransportError
from onepass.bench.online.requests import PreparedRequest, RequestStream
from onepass.bench.online.target import Target
from onepass.bench.online.window import Window

MOST_PREPARED = 50_000
MOST_PREPARED_BYTES = 1 << 28


class Supply(Protocol):
    """Where a loop gets its next request."""

    made_late: int

    def take(self) -> PreparedRequest: ...


@dataclass
class Source:
    """Requests in the order of their numbers, some of them prepared before they are needed."""

    requests: RequestStream
    next_number: int = 0
    ready: deque[PreparedRequest] = field(default_factory=deque)
    made_late: int = 0

    def prepare(self, count: int) -> None:
        held = sum(len(one.body) for one in self.ready)
        while len(self.ready) < min(count, MOST_PREPARED) and held < MOST_PREPARED_BYTES:
            self.ready.append(self._make())
            held += len(self.ready[-1].body)

    def take(self) -> PreparedRequest:
        if self.ready:
            return self.ready.popleft()
        self.made_late += 1
        return self._make()

    def _make(self) -> PreparedRequest:
        self.next_number += 1
        return self.requests.prepare(self.next_number - 1)


async def closed_loop(
    target: Target,
    source: Supply,
    clients: int,
    seconds: float,
    window: Window | None = None,
    joining: float = 0.0,
    most: int | None = None,
) -> Window:
    """Each client sends its next request when its last was answered, until the time is up; what is under way then is
    waited for and counted. Whoever is refused comes back when the server said. Clients join one after another over the
    first `joining` seconds. `most` requests are sent, or as many as the time allows."""
    window = window or Window()
    window.clients = clients
    with _timing(window, source):
        until = time.perf_counter() + seconds

        async def client(number: int) -> None:
            await asyncio.sleep(joining * number / clients)
            while (now := time.perf_counter()) < until and (most is None or window.sent < most):
                pause = await send(target, source.take(), now, window)
                if pause:
                    await asyncio.sleep(max(0.0, min(pause, until - time.perf_counter())))

        await asyncio.gather(*(client(number) for number in range(clients)))
    return window


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Poisson: exponential gaps. At least one."""
    gaps = np.random.default_rng([seed, 3]).exponential(1 / rate, int(2 * rate * seconds) + 50)
    times = np.cumsum(gaps)
    return times[times < seconds].tolist() or [0.0]


async def open_loop(
    target: Target, source: Supply, due: Sequence[float], rate: float, window: Window | None = None
) -> Window:
    """A request at each of these seconds, whatever has become of those before it."""
    window = window or Window()
    window.rate = rate
    with _timing(window, source):
        start = time.perf_counter()
        tasks = []
        for after in due:
            request = source.take()
            await asyncio.sleep(max(0.0, start + after - time.perf_counter()))
            window.lags.append(time.perf_counter() - start - after)
            tasks.append(asyncio.create_task(send(target, request, start + after, window)))
        await asyncio.gather(*tasks)
    return window


async def send(target: Target, request: PreparedRequest, due: float, window: Window) -> float:
    """Seconds that a client should wait before it sends again."""
    window.sent += 1
    try:
        return window.take(request, due, await target.score(request.body, request.path))
    except TransportError as error:
        return window.no_answer(error)


@contextmanager
def _timing(window: Window, source: Supply) -> Iterator[None]:
    """Wall and processor time of the loop, without pauses for collecting garbage."""
    gc.collect()
    gc.disable()
    source.made_late = 0
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        yield
    finally:
        gc.enable()
        window.seconds = time.perf_counter() - wall
        window.client_cpu = (time.process_time() - cpu) / max(window.seconds, 1e-9)
        window.made_late = source.made_late
