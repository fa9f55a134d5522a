"""The one interface of all peers: what is asked, how it is timed, what is answered. Standard library only.

How a peer computes its scores is the peer's own script; where it runs is `environments`. Times are of whole passes
over the items; what can be made beforehand (tensors of ids, masks) is made outside them, in the peer's favour.
"""

import argparse
import contextlib
import json
import math
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

LEAST = 5  # timed passes

Ids = list[int]
Scores = list[list[float]]  # [item][label], probabilities in the whole vocabulary


@dataclass(frozen=True)
class Job:
    """P(label | query + item) is wanted for every item. `weights` is a Hugging Face folder, `gguf` the same model."""

    weights: Path
    dtype: str
    query: Ids
    items: list[Ids]
    labels: Ids
    gguf: Path | None = None
    repeats: int = 10
    warmup: int = 2
    # A peer whose passes take longer than this together is not timed `repeats` times, but LEAST at least.
    seconds: float | None = None
    threads: int = 2
    # Peers that take one item at a time may time this many items, spread over all.
    sample: int | None = None
    # "int8": the peer's own 8-bit form of the model (`catalogue`), instead of products in `dtype`.
    quantize: str | None = None
    # A socket where whoever asks is told of every timed pass before it begins, and has theirs first.
    turns: str | None = None
    # Overrides of the peer's own settings, to find its best: {"batch_items": 16}
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Job":
        raw = json.loads(path.read_text(encoding="utf-8"))
        gguf = raw.pop("gguf", None)
        raw["sample"] = raw.get("sample") or None
        job = cls(**{**raw, "weights": Path(raw["weights"]), "gguf": Path(gguf) if gguf else None})
        job.check()
        return job

    def check(self) -> None:
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype should be float32 or bfloat16; got {self.dtype!r}")
        if self.quantize not in (None, "int8"):
            raise ValueError(f"quantize should be int8 or nothing; got {self.quantize!r}")
        empty = [number for number, item in enumerate(self.items) if not item]
        if not self.query or not self.items or not self.labels or empty:
            sizes = f"{len(self.query)} query tokens, {len(self.items)} items, {len(self.labels)} labels"
            raise ValueError(f"a job should have no empty part; got {sizes}, empty items {empty[:5]}")

    def sampled(self) -> list[int]:
        """The indexes of the items that a serial peer times."""
        count = len(self.items)
        wanted = min(self.sample or count, count)
        return [number * count // wanted for number in range(wanted)]


@dataclass(frozen=True)
class Asked:
    """One request of mixed traffic, with labels or with continuations of every item."""

    number: int
    kind: str
    query: Ids
    items: list[Ids]
    labels: Ids = field(default_factory=list)
    continuations: list[Ids] = field(default_factory=list)


@dataclass(frozen=True)
class MixedJob:
    """Requests that all differ, one after another. `first` is what the peer is made from: as large as any of them."""

    first: Job
    requests: list[Asked]

    @classmethod
    def read(cls, raw: dict[str, Any]) -> "MixedJob":
        requests = [Asked(**one) for one in raw.pop("requests")]
        largest = {
            "query": max((one.query for one in requests), key=len),
            "items": [max((item for one in requests for item in one.items), key=len)],
            "labels": max((one.labels for one in requests), key=len) or [0],
        }
        gguf = raw.pop("gguf", None)
        paths = {"weights": Path(raw.pop("weights")), "gguf": Path(gguf) if gguf else None}
        first = Job(**{**raw, **paths, **largest})
        first.check()
        return cls(first, requests)


class Peer(Protocol):
    """Made from a job (loading is not timed). `serial` peers take one item at a time and may be sampled."""

    serial: bool
    settings: dict[str, Any]
    versions: dict[str, str]
    notes: str

    def prepare(self, items: list[Ids]) -> Any: ...

    def reset(self) -> None:
        """Forget the query: every pass is a cold request."""

    def score(self, prepared: Any) -> Scores: ...


@contextlib.contextmanager
def taking_turns(path: str | None) -> Iterator[Callable[[], None]]:
    """What waits until it is the peer's turn."""
    if path is None:
        yield lambda: None
        return
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(path)

        def wait() -> None:
            other.sendall(b"\0")
            if not other.recv(1):
                raise RuntimeError("whoever asked for this peer has gone")

        yield wait


def measure(job: Job, peer: Peer) -> dict[str, Any]:
    """Warm-up passes, one at least, then timed ones; the scores are those of the last timed pass."""
    with taking_turns(job.turns) as wait:
        return _measured(job, peer, wait)


def _measured(job: Job, peer: Peer, wait: Callable[[], None]) -> dict[str, Any]:
    chosen = job.sampled() if peer.serial else list(range(len(job.items)))
    prepared = peer.prepare([job.items[number] for number in chosen])
    times, cpu_times, scores = [], [], []
    most, warm_up = job.seconds or math.inf, job.warmup
    while len(times) < warm_up + job.repeats:
        if len(times) < warm_up and sum(times) > most / 2:
            warm_up = len(times)
        if len(times) >= warm_up + LEAST and sum(times[warm_up:]) > most:
            break
        if len(times) >= warm_up:
            wait()
        peer.reset()
        start, cpu_start = time.perf_counter(), time.process_time()
        scores = peer.score(prepared)  # plain lists: whatever a device still has to do is done by then
        times.append(time.perf_counter() - start)
        cpu_times.append(time.process_time() - cpu_start)
    if len(scores) != len(chosen) or any(len(row) != len(job.labels) for row in scores):
        raise RuntimeError(f"{len(chosen)} x {len(job.labels)} scores were wanted; {len(scores)} rows came")
    return {
        "times_s": times[warm_up:],
        # Well below threads x times_s: other processes had the cores.
        "cpu_s": cpu_times[warm_up:],
        "items_timed": len(chosen),
        "scores": scores,
        "scored_items": chosen,
        "versions": peer.versions,
        "settings": peer.settings,
        "notes": peer.notes,
    }


class MixedPeer(Peer, Protocol):
    """A peer that takes requests that differ. Without `branches` it is not asked for continuations."""

    branches: bool

    def take(self, job: Job) -> None:
        """The query and the labels of the next request."""

    def prepare_branches(self, items: list[Ids], continuations: list[Ids]) -> Any: ...

    def score_branches(self, prepared: Any) -> Scores:
        """[item][continuation], the mean probability of a continuation's tokens: exp of their mean log-probability."""


def measure_mixed(job: MixedJob, peer: MixedPeer) -> dict[str, Any]:
    """One request after another, until the time is up. The first runs once before, untimed, whatever it makes ready."""
    todo = [one for one in job.requests if not one.continuations or peer.branches]
    answers: list[dict[str, Any]] = []
    if todo:
        _one(job.first, peer, todo[0])
    for asked in todo:
        if sum(one["seconds"] for one in answers) > (job.first.seconds or math.inf):
            break
        seconds, scores = _one(job.first, peer, asked)
        answers.append({"number": asked.number, "seconds": seconds, "scores": scores})
    return {
        "answers": answers,
        "left_out": sorted({one.kind for one in job.requests if one.continuations} if not peer.branches else ()),
        "versions": peer.versions,
        "settings": peer.settings,
        "notes": peer.notes,
    }


def _one(first: Job, peer: MixedPeer, asked: Asked) -> tuple[float, Scores]:
    peer.take(replace(first, query=asked.query, items=asked.items, labels=asked.labels or first.labels))
    if asked.continuations:
        prepared, score = peer.prepare_branches(asked.items, asked.continuations), peer.score_branches
    else:
        prepared, score = peer.prepare(asked.items), peer.score
    peer.reset()
    start = time.perf_counter()
    scores = score(prepared)
    return time.perf_counter() - start, scores


def failed(peer: str, error: str) -> dict[str, Any]:
    """An answer without numbers, that says why."""
    empty: dict[str, Any] = {"times_s": [], "items_timed": 0, "scores": [], "scored_items": [], "versions": {}}
    return {"peer": peer, **empty, "settings": {}, "error": error, "notes": ""}


def serve(make: Callable[[str, Job], Peer]) -> None:
    """The main function of every peer's script: an answer is written whatever happens, with the error if one came."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", required=True)
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    try:
        answer = {"peer": asked.peer, **_answer(asked.peer, asked.job, make), "error": None}
    except Exception as error:
        traceback.print_exc()
        answer = failed(asked.peer, f"{type(error).__name__}: {error}")
    asked.out.write_text(json.dumps(answer), encoding="utf-8")


def _answer(name: str, path: Path, make: Callable[[str, Job], Any]) -> dict[str, Any]:
    raw = json.loads(path.read_text(encoding="utf-8"))
    if "requests" not in raw:
        job = Job.read(path)
        return measure(job, make(name, job))
    mixed = MixedJob.read(raw)
    peer = make(name, mixed.first)
    if not hasattr(peer, "take"):
        raise TypeError(f"{name} takes one request again and again, no traffic whose requests differ")
    return measure_mixed(mixed, peer)


def groups(indexes: Sequence[int], size: int) -> list[list[int]]:
    return [list(indexes[start : start + size]) for start in range(0, len(indexes), size)]
