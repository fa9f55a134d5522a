"""One request divided between replicas by items: its parts, their answers put together, and the trace of all.

How many parts, and which replica gets which, is `replicas`.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np

from onepass.api import Timings, Usage
from onepass.engine.encoding.encode import Encoded
from onepass.engine.job import JobOutput, OnItems, settle
from onepass.engine.readout import ReadOut
from onepass.trace import Trace, joined

# Submits a part to the replica of that number.
Give = Callable[[int, Encoded, OnItems | None], "Future[JobOutput]"]


class Division:
    """One request in several parts, and its answer put together."""

    def __init__(self, encoded: Encoded, parts: int) -> None:
        edges = np.linspace(0, len(encoded.items), parts + 1).astype(int).tolist()
        self._edges = list(pairwise(edges))
        self._encoded = encoded
        self._lock = threading.Lock()
        self._left = parts

    def run(self, give: Give, places: Sequence[int], on_items: OnItems | None) -> "Future[JobOutput]":
        out: Future[JobOutput] = Future()
        with _all_or_none() as futures:
            for at, (first, last) in zip(places, self._edges, strict=False):
                futures.append(give(at, self._part(first, last), _shifted(on_items, first)))
        out.add_done_callback(lambda done: [future.cancel() for future in futures] if done.cancelled() else None)
        for future in futures:
            future.add_done_callback(lambda done: self._collect(done, futures, out))
        return out

    def _part(self, first: int, last: int) -> Encoded:
        whole = self._encoded
        items = whole.items[first:last]
        tokens = len(whole.context) + sum(map(len, items))
        return replace(
            whole,
            items=items,
            labels=whole.labels[first:last],
            continuations=whole.continuations[first:last],
            prompt_tokens=tokens,
            flat=None,
        )

    def _collect(self, done: "Future[JobOutput]", futures: "list[Future[JobOutput]]", out: "Future[JobOutput]") -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            for future in futures:
                future.cancel()
            settle(out, error)
            return
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last and not any(future.cancelled() for future in futures):
            answers = [future.result() for future in futures]
            futures.clear()  # no cycle is left (`Engine.submit`)
            settle(out, self._joined(answers))

    def _joined(self, answers: list[JobOutput]) -> JobOutput:
        best = [answer.read.best for answer in answers if answer.read.best is not None]
        read = ReadOut(
            np.concatenate([answer.read.logits for answer in answers]),
            np.concatenate([answer.read.logsumexp for answer in answers]),
            np.concatenate(best, axis=1) if best else None,
        )
        infos = [answer.info for answer in answers]
        usage = Usage(
            self._encoded.prompt_tokens,
            sum(info.usage.cached_tokens for info in infos),
            sum(info.usage.computed_tokens or 0 for info in infos),
        )
        # Parts run beside each other: the longest counts, but compilations add up.
        timings = Timings(
            **{f.name: max(getattr(info.timings, f.name) for info in infos) for f in fields(Timings)}
            | {"compilations": sum(info.timings.compilations or 0 for info in infos)}
        )
        reason = f"{infos[0].reason}; divided between {len(infos)} replicas"
        trace = self._trace([info.trace for info in infos])
        return JobOutput(read, replace(infos[0], reason=reason, usage=usage, timings=timings, trace=trace))

    def _trace(self, traces: "list[Trace | None]") -> Trace | None:
        """With each part's items numbered as those of the whole request."""
        parts = zip(traces, self._edges, strict=True)
        return joined([trace.shifted(first) for trace, (first, _) in parts if trace is not None])


@contextmanager
def _all_or_none() -> "Iterator[list[Future[Any]]]":
    """Futures that are cancelled when a later one cannot be had."""
    futures: list[Future[Any]] = []
    try:
        yield futures
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _shifted(on_items: OnItems | None, by: int) -> OnItems | None:
    if on_items is None:
        return None
    return lambda first, last, read: on_items(first + by, last + by, read)
