"""One case timed: warm-up, then a window of timed calls with everything that could make them worthless watched.

What a row says of it, and whether the row stands, is `row`; what is right is `reference`.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

import numpy as np

from onepass.api import Mode, ScoreRequest, ScoreResult
from onepass.bench.offline.counters import Peak, counting_compiles, forget_peak, read_peak
from onepass.bench.workloads import Workload
from onepass.engine.gc_policy import rare_collections
from onepass.scorer import Scorer


@dataclass(frozen=True)
class Timing:
    """How a case is timed. Fewer than ten repeats must be asked for, and are told in the report."""

    repeats: int = 10
    warm_up: int = 2


@dataclass
class Measurement:
    """The window's record: `calls` are seconds of each request, `rounds` of so many as the workload has."""

    calls: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    results: list[list[ScoreResult]] = field(default_factory=list)
    engine_compilations: int = 0
    backend_compilations: int = 0
    errors: list[str] = field(default_factory=list)
    peak: Peak | None = None
    in_flight: bool = False

    @property
    def seconds(self) -> float:
        """Of a round. Of requests in flight all the time counts, with its beginning and end, when fewer are there."""
        return float(np.mean(self.rounds) if self.in_flight else np.median(self.rounds))


def requests_in(workload: Workload, mode: Mode) -> list[ScoreRequest]:
    return [replace(one.request, mode=mode) for one in workload.requests]


def measure(
    scorer: Scorer, requests: Sequence[ScoreRequest], timing: Timing, cached: bool, together: bool = False
) -> Measurement:
    """Requests one after the other, or all kept in flight `together`, `repeats` times. Unless `cached`, contexts are
    cleared before each timed call, so that each computes its query. An error ends the window and voids the row."""
    timed = Measurement(in_flight=together)
    fresh = forget_peak()
    run = _in_flight if together else _one_by_one
    try:
        scorer.compile()
        run(scorer, requests, cached, timing.warm_up, Measurement())
        before = scorer.engine.runner.compilations
        with counting_compiles() as compiles, rare_collections():
            run(scorer, requests, cached, timing.repeats, timed)
        timed.engine_compilations = scorer.engine.runner.compilations - before
        timed.backend_compilations = compiles.count
    except Exception as error:
        timed.errors.append(f"{type(error).__name__}: {error}"[:400])
    timed.peak = read_peak(fresh)
    return timed


def _in_flight(
    scorer: Scorer, requests: Sequence[ScoreRequest], cached: bool, repeats: int, timed: Measurement
) -> None:
    """A client for each request, who sends it again when it is answered: as many are in flight as there are requests,
    until the last `repeats`. A round is as many answers, whoever's; a call's seconds run from when it was sent."""
    answers: SimpleQueue[tuple[int, float, Future[ScoreResult]]] = SimpleQueue()

    def send(client: int) -> None:
        if not cached:
            scorer.engine.contexts.clear()
        start = time.perf_counter()
        future = scorer.submit(requests[client])
        future.add_done_callback(lambda done: answers.put((client, time.perf_counter() - start, done)))

    got: list[list[tuple[float, ScoreResult]]] = [[] for _ in requests]
    began = time.perf_counter()
    for client in range(len(requests) if repeats else 0):
        send(client)
    for number in range(len(requests) * repeats):
        client, seconds, done = answers.get()
        got[client].append((seconds, done.result()))
        if len(got[client]) < repeats:
            send(client)
        if (number + 1) % len(requests) == 0:
            now = time.perf_counter()
            timed.rounds.append(now - began)
            began = now
    for calls in zip(*got, strict=True):
        timed.calls += [seconds for seconds, _ in calls]
        timed.results.append([result for _, result in calls])


def _one_by_one(
    scorer: Scorer, requests: Sequence[ScoreRequest], cached: bool, repeats: int, timed: Measurement
) -> None:
    for _ in range(repeats):
        seconds, results = [], []
        for request in requests:
            if not cached:
                scorer.engine.contexts.clear()
            start = time.perf_counter()
            result = scorer.score_many([request])[0]
            seconds.append(time.perf_counter() - start)
            results.append(result)
        timed.calls += seconds
        timed.rounds.append(sum(seconds))
        timed.results.append(results)


def probabilities(result: ScoreResult) -> np.ndarray:
    """[items, labels] in the whole vocabulary; among the labels where the request spared the pass over it."""
    return numbers(result, among_labels=False)


def numbers(result: ScoreResult, among_labels: bool) -> np.ndarray:
    """[items, labels] probabilities in the vocabulary; `among_labels` adds those of a softmax over the labels, for
    models to which every label is unlikely. Logprobs are None where the request spared the pass over the vocabulary."""
    parts = [] if result.logprobs is None else [np.exp(np.array(result.logprobs, np.float64))]
    if among_labels or result.logprobs is None:
        logits = np.array(result.logits, np.float64)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        parts.append(powers / powers.sum(axis=1, keepdims=True))
    return np.concatenate(parts, axis=1)
