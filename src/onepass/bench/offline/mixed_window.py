"""Mixed traffic through a scorer: clients that each send their next request when the last is answered, from cold.

Nothing is warmed up: the clock and the count of compilations start with the first request. What a row says of a window
is `mixed_row`; a server is driven the same way by `loops`.
"""

import math
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

import numpy as np

from onepass.api import Mode, ScoreResult
from onepass.bench.mixed import MixedStream, Traffic, TrafficRequest, result_rows, some_items
from onepass.bench.offline.counters import Peak, counting_compiles, forget_peak, read_peak
from onepass.bench.row import Differences
from onepass.engine.gc_policy import rare_collections
from onepass.scorer import Scorer

PREPARED_PER_CLIENT = 32  # requests that are built before the clock starts
KEPT_RESULTS = 2000  # of the first requests, for the check and for peers
CHECKED_PER_KIND = 2
MOST_ERRORS = 20  # whose text is kept
MOST_FAILURES = 200  # after which nobody sends any more


@dataclass(frozen=True)
class AnsweredRequest:
    number: int
    kind: str
    items: int
    tokens: int
    seconds: float
    mode: str
    encode_ms: float
    device_ms: float
    padding_ratio: float


@dataclass
class TrafficWindow:
    """What came of the traffic. `results` are those of the first requests, by number."""

    clients: int
    sent: int = 0
    seconds: float = 0.0  # from the first request to the last answer
    answered: list[AnsweredRequest] = field(default_factory=list)
    results: dict[int, ScoreResult] = field(default_factory=dict)
    num_errors: int = 0
    errors: list[str] = field(default_factory=list)
    engine_compilations: int = 0
    backend_compilations: int = 0
    peak: Peak | None = None

    def fail(self, error: BaseException) -> None:
        self.num_errors += 1
        if len(self.errors) < MOST_ERRORS:
            self.errors.append(f"{type(error).__name__}: {error}"[:400])


def drive(scorer: Scorer, stream: MixedStream, traffic: Traffic, mode: Mode = "auto") -> TrafficWindow:
    """Requests 0, 1, 2, ... of the stream. What is under way when the time is up is waited for and counted."""
    window = TrafficWindow(traffic.clients)
    fresh = forget_peak()
    ready = deque(stream.request(number) for number in range(_prepared(traffic)))
    before = scorer.engine.runner.compilations
    with counting_compiles() as compiles, rare_collections():
        _send(scorer, stream, traffic, mode, ready, window)
    window.engine_compilations = scorer.engine.runner.compilations - before
    window.backend_compilations = compiles.count
    window.peak = read_peak(fresh)
    return window


def _prepared(traffic: Traffic) -> int:
    return min(PREPARED_PER_CLIENT * traffic.clients, traffic.num_requests or PREPARED_PER_CLIENT * traffic.clients)


def _send(
    scorer: Scorer,
    stream: MixedStream,
    traffic: Traffic,
    mode: Mode,
    ready: "deque[TrafficRequest]",
    window: TrafficWindow,
) -> None:
    came: SimpleQueue[tuple[TrafficRequest, float, Future[ScoreResult]]] = SimpleQueue()
    began = time.perf_counter()
    until = began + (math.inf if traffic.seconds is None else traffic.seconds)
    most = math.inf if traffic.num_requests is None else traffic.num_requests
    under_way = 0

    def submit(request: TrafficRequest) -> bool:
        start = time.perf_counter()
        try:
            future = scorer.submit(replace(request.request, mode=mode))
        except Exception as error:  # refused at once: the client's next request follows
            window.fail(error)
            return False
        future.add_done_callback(lambda done: came.put((request, time.perf_counter() - start, done)))
        return True

    def send() -> bool:
        """Whether a client has a request under way again."""
        while window.sent < most and window.num_errors < MOST_FAILURES and time.perf_counter() < until:
            request = ready.popleft() if ready else stream.request(window.sent)
            window.sent += 1
            if submit(request):
                return True
        return False

    for _ in range(traffic.clients):
        under_way += send()
    while under_way:
        request, seconds, done = came.get()
        under_way -= 1
        error = done.exception()
        if error is not None:
            window.fail(error)
        under_way += send()
        if error is None:
            _take(window, request, seconds, done.result())
        window.seconds = time.perf_counter() - began


def _take(window: TrafficWindow, request: TrafficRequest, seconds: float, result: ScoreResult) -> None:
    sizes, timings = request.sizes, result.timings
    spent = (timings.encode_ms, timings.device_ms, timings.padding_ratio or 1.0)
    window.answered.append(
        AnsweredRequest(request.number, sizes.kind, len(sizes.items), sizes.tokens, seconds, result.mode, *spent)
    )
    if request.number < KEPT_RESULTS:
        window.results[request.number] = result


def compare_with_serial(
    scorer: Scorer, stream: MixedStream, window: TrafficWindow, most_items: int
) -> Differences | None:
    """Some items of some answers of every kind, asked again in mode `serial`; None where nothing was answered."""
    chosen = _some_of_each_kind(window)
    share = max(1, most_items // max(1, len(chosen)))
    pairs = []
    for number in chosen:
        got = result_rows(window.results[number])
        places = np.unique(np.linspace(0, len(got) - 1, min(share, len(got))).round().astype(int)).tolist()
        again = scorer.score_many([some_items(stream.request(number).request, places)])[0]
        pairs.append((got[places], result_rows(again)))
    return Differences.of_drawn_labels(pairs) if pairs else None


def _some_of_each_kind(window: TrafficWindow) -> list[int]:
    kinds: dict[str, list[int]] = {}
    for one in sorted(window.answered, key=lambda one: one.number):
        if one.number in window.results:
            kinds.setdefault(one.kind, []).append(one.number)
    # The last of a kind ran beside others; the first began before anyone else.
    return [number for numbers in kinds.values() for number in numbers[-CHECKED_PER_KIND:]]
