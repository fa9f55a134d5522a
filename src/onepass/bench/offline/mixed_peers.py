"""Peers on mixed traffic: the very requests that the scorer answered, one after another, in a process of their own.

Only peers that take requests that differ are asked; a row tells which kinds a peer could not do, or why it did not run.
Peers on one repeated request are `peers`; the runners are benchmarks/peers.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np

from onepass.api import ScoreResult
from onepass.bench.document import Document
from onepass.bench.mixed import MixedStream, fields_of, result_rows
from onepass.bench.offline.mixed_run import MixedBenchRun
from onepass.bench.offline.mixed_window import TrafficWindow
from onepass.bench.offline.peers import DEAR, Peers, ask, no_figures, peer_line
from onepass.bench.offline.run import fastest
from onepass.bench.row import Row, latencies, latencies_by_part, some_times
from onepass.limits import usable_cores
from onepass.loading.export import export
from onepass.loading.model import Model

ABLE = {"transformers-packed": ("cpu", "cuda"), "vllm": ("cpu",)}  # and the devices they are worth running on
MOST_REQUESTS = 400
SECONDS_OVER_OURS = 2.0  # a peer that needs longer than so many times our window is cut short


def find_mixed_peers(wanted: Sequence[str], model: Model, folder: Path | None = None) -> Peers:
    """`all` and `cheap` mean peers that take requests that differ, built or not: one that is not says so in its row."""
    device = "cpu" if jax.default_backend() == "cpu" else "cuda"
    able = [name for name, devices in ABLE.items() if device in devices]
    meant = {"all": able, "cheap": [name for name in able if name not in DEAR]}
    names = dict.fromkeys(name for one in wanted for name in meant.get(one, [one]))
    return Peers.find(list(names), model, folder)


def run_mixed_peers(peers: Peers, ran: MixedBenchRun, tell: Callable[[Document], None]) -> list[Document]:
    best = fastest(ran.rows, ran.dtype)
    window = ran.windows[best.mode] if best else next(iter(ran.windows.values()))
    rows = []
    with tempfile.TemporaryDirectory(prefix="onepass-peers-") as scratch:
        export(ran.model.config, ran.weights, Path(scratch, "weights"))
        job = _job(ran, window, Path(scratch, "weights"))
        for name in peers.names:
            answer = ask(peers.folder, name, job, Path(scratch)) if job["requests"] else {"error": "nothing to compare"}
            rows.append(mixed_peer_row(name, answer, ran.stream, window, ran.dtype, best))
            tell(rows[-1])
    return rows


def _job(ran: MixedBenchRun, window: TrafficWindow, weights: Path) -> Document:
    job = {
        "weights": str(weights),
        "dtype": str(ran.weights.embed.dtype),
        "seconds": SECONDS_OVER_OURS * window.seconds,
        "threads": usable_cores(),
        "requests": [_asked(ran.stream, number) for number in sorted(window.results)[:MOST_REQUESTS]],
    }
    if ran.model.source.kind == "gguf":
        job["gguf"] = str(ran.model.source.path)
    return job


def _asked(stream: MixedStream, number: int) -> Document:
    one = stream.request(number)
    fields = fields_of(one.request)
    labels, continuations = fields.get("label_token_ids", []), fields.get("continuations", [])
    asked = {"query": fields["query"], "items": fields["items"], "labels": labels, "continuations": continuations}
    return {"number": number, "kind": one.kind, **asked}


def mixed_peer_row(
    name: str, answer: Document, stream: MixedStream, window: TrafficWindow, dtype: str, best: Row | None
) -> Document:
    """A peer's line. The ratio is of tokens a second, and both rates are over whatever each was given."""
    answers = answer.get("answers") or []
    void = [f"skipped: {answer['error']}"] if answer.get("error") else [] if answers else ["no answers came back"]
    facts = no_figures()
    notes = [str(answer["notes"])] if answer.get("notes") else []
    if not void:
        facts |= _speed(answers, stream)
        facts["max_difference"], void = _difference(answers, window)
        if best is not None and best.tokens_per_second is not None:
            facts["ratio"] = best.tokens_per_second / facts["tokens_per_second"]
        notes.append(f"{len(answers)} of {len(window.results)} requests, one after another; the ratio is of tokens/s")
        notes += [f"could not do kinds: {', '.join(answer['left_out'])}"] if answer.get("left_out") else []
    times = some_times([one["seconds"] for one in answers]) if answers else []
    facts |= {"times_ms": times, "repeats": len(answers), "void": void, "notes": notes}
    return peer_line(name, answer, stream.name, dtype, best, facts)


def _speed(answers: list[Document], stream: MixedStream) -> Document:
    sizes = [stream.sizes(one["number"]) for one in answers]
    seconds = sum(float(one["seconds"]) for one in answers)
    return {
        "items_per_second": sum(len(one.items) for one in sizes) / seconds,
        "tokens_per_second": sum(one.tokens for one in sizes) / seconds,
        "latency_ms": latencies([float(one["seconds"]) for one in answers]),
        "parts": latencies_by_part(
            (size.kind, float(one["seconds"])) for size, one in zip(sizes, answers, strict=True)
        ),
    }


def _difference(answers: list[Document], window: TrafficWindow) -> tuple[float | None, list[str]]:
    worst = 0.0
    for one in answers:
        wanted, theirs = _probabilities(window.results[one["number"]]), np.array(one["scores"], np.float64)
        if theirs.shape != wanted.shape or not np.isfinite(theirs).all():
            return None, [f"request {one['number']}: wanted {list(wanted.shape)} scores; got {list(theirs.shape)}"]
        worst = max(worst, float(np.abs(theirs - wanted).max()))
        if window.results[one["number"]].continuations is None:  # labels drawn at random may all be unlikely
            worst = max(worst, float(np.abs(_among(theirs) - _among(wanted)).max()))
    return worst, []


def _probabilities(result: ScoreResult) -> np.ndarray:
    """[items, labels] in the whole vocabulary, or [items, continuations] a token."""
    if result.continuations is not None:
        return result_rows(result)
    assert result.logprobs is not None  # the stream asks for label_mass, as requests do by themselves
    return np.exp(np.array(result.logprobs, np.float64))


def _among(probabilities: np.ndarray) -> np.ndarray:
    """The same among the labels alone."""
    return probabilities / np.maximum(probabilities.sum(axis=1, keepdims=True), 1e-300)
