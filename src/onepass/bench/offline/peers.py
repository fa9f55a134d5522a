"""Other systems on the same weights and tokens: each is asked in a process of its own, one after the other.

A machine that is shared changes its rate within seconds, so our fastest row and a peer are timed by turns (`turns`).

Where our weights are quantized to int8, a peer runs in the 8-bit form that it has itself, and its scores are compared
with ours unquantized, as our rows are: every line tells its drift.

Runners and their environments are `benchmarks/peers`; here are the job they are given and what is made of the answer.
"""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from onepass.bench.document import Document
from onepass.bench.offline.cases import Way
from onepass.bench.offline.measure import Timing, measure, requests_in
from onepass.bench.offline.run import BenchRun, Plan, cache_bytes, fastest
from onepass.bench.offline.turns import Turns
from onepass.bench.row import Row
from onepass.bench.workloads import Workload
from onepass.engine.config import Quantize
from onepass.engine.load import quantized
from onepass.errors import ConfigError
from onepass.evidence.drift import Drift, among_labels
from onepass.evidence.tolerance import AGAINST_TORCH, BETWEEN_MODES, Tolerance
from onepass.limits import usable_cores
from onepass.loading.export import export
from onepass.loading.model import Model
from onepass.scorer import Scorer

SECONDS = 1800  # a peer that takes longer, our passes beside its own among that, has failed
TIMED_SECONDS = 40  # of a slow peer's passes; five of them at least
DEAR = ("transformers-batched", "vllm")  # computes the query again for every item; compiles for minutes as it starts


@dataclass(frozen=True)
class Peers:
    """`folder` holds run.py; `names` are the peers to run, in order. Of quantized runs, `forms` says in words what each
    computes in, and `left_out` are those asked for that have no such form."""

    folder: Path
    names: tuple[str, ...]
    forms: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @classmethod
    def find(
        cls, wanted: Sequence[str], model: Model, folder: Path | None = None, quantize: Quantize | None = None
    ) -> "Peers":
        """`all` means every peer that could run here: its environment is built, it is worth running on this device, and
        it can read this model. `cheap` means those without the ones that take minutes. A peer asked for by name is
        run whatever comes."""
        folder = folder or _folder()
        known = _listed(folder)
        unknown = [name for name in wanted if name not in ("all", "cheap", *(row["peer"] for row in known))]
        if unknown:
            listed = ", ".join(row["peer"] for row in known)
            raise ConfigError(f"peers must be all, cheap or some of {listed}; got {', '.join(unknown)}")
        able = [row["peer"] for row in known if _could_run(row, model)]
        meant = {"all": able, "cheap": [name for name in able if name not in DEAR]}
        names = tuple(dict.fromkeys(name for one in wanted for name in meant.get(one, [one])))
        if quantize != "int8":
            return cls(folder, names)
        forms = {row["peer"]: row["int8"] for row in known if row["int8"]}
        return cls(folder, tuple(n for n in names if n in forms), forms, tuple(n for n in names if n not in forms))


def _folder() -> Path:
    for root in (Path.cwd(), Path(__file__).parents[4]):
        if (root / "benchmarks" / "peers" / "run.py").exists():
            return root / "benchmarks" / "peers"
    raise ConfigError("peers are run from a checkout: there is no benchmarks/peers/run.py here")


def _listed(folder: Path) -> list[Document]:
    command = [sys.executable, str(folder / "run.py"), "--list", "--json"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        raise ConfigError(f"benchmarks/peers/run.py --list failed: {listed.stderr.strip()[-300:]}")
    rows: list[Document] = json.loads(listed.stdout)
    return rows


def _could_run(row: Document, model: Model) -> bool:
    device = "cpu" if jax.default_backend() == "cpu" else "cuda"
    readable = model.source.kind == "gguf" or not row["needs_gguf"]
    return bool(row["ready"]) and device in row["devices"] and readable


def run_peers(peers: Peers, ran: BenchRun, plan: Plan, tell: Callable[[Document], None]) -> list[Document]:
    """Every peer on the plain workload, in the dtype of this run or in 8 bits; then those that were left out."""
    workload = next(iter(ran.workloads.values()))
    assert isinstance(workload, Workload), "mixed traffic has peers of its own (`mixed_peers`)"
    timed = workload
    if workload.in_flight > 1:  # requests that differ in their tokens alone: a peer takes one of them again and again
        workload = replace(workload, requests=workload.requests[:1], in_flight=1)
    if len(workload.requests) != 1 or len(set(workload.requests[0].labels)) != 1:
        raise ConfigError("peers take a workload of one request with one set of labels")
    best = fastest(ran.rows, ran.dtype)
    ours = _our_scores(ran, workload)
    answers = []
    with tempfile.TemporaryDirectory(prefix="onepass-peers-") as scratch, _our_pass(best, ran, timed, plan) as once:
        export(ran.model.config, ran.weights, Path(scratch, "weights"))
        job = _job(ran, workload, plan, Path(scratch, "weights"))
        for name in peers.names:
            turns = Turns(Path(scratch, "turns"), once)
            with turns.offered():
                answer = ask(peers.folder, name, {**job, "turns": str(turns.path)}, Path(scratch))
            row = peer_row(name, answer, workload, ran.dtype, best, ours, turns.seconds)
            answers.append({**row, "form": peers.forms.get(name)})
            tell(answers[-1])
    for name in peers.left_out:
        answer = {"error": f"left out: it has no {ran.dtype} form of its own"}
        answers.append({**peer_row(name, answer, workload, ran.dtype, best, ours), "form": None})
        tell(answers[-1])
    return answers


def _job(ran: BenchRun, workload: Workload, plan: Plan, weights: Path) -> Document:
    (request,) = workload.requests
    job = {
        "weights": str(weights),
        "dtype": str(ran.weights.embed.dtype),
        "quantize": "int8" if ran.dtype == "int8" else None,
        "query": list(request.query),
        "items": [list(item) for item in request.items],
        "labels": list(request.labels[0]),
        "repeats": plan.timing.repeats,
        "warmup": plan.timing.warm_up,
        "seconds": TIMED_SECONDS,
        "threads": usable_cores(),
        "sample": plan.serial_items,
    }
    if ran.model.source.kind == "gguf":
        job["gguf"] = str(ran.model.source.path)
    return job


def ask(folder: Path, name: str, job: Document, scratch: Path) -> Document:
    """The peer's answer; whatever goes wrong in its process is an answer with an error."""
    job_file, answer_file = scratch / f"{name}-job.json", scratch / f"{name}-out.json"
    job_file.write_text(json.dumps(job), encoding="utf-8")
    files = ["--job", str(job_file), "--out", str(answer_file)]
    command = [sys.executable, str(folder / "run.py"), "--peer", name, *files, "--timeout", str(SECONDS)]
    if importlib.util.find_spec("torch") is not None:
        command.append("--here")  # one Python has JAX and PyTorch, as machines with a GPU do
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS + 60
        )
    except subprocess.TimeoutExpired:
        return {"error": f"given up after {SECONDS} s"}
    if not answer_file.exists():
        return {"error": f"exited with {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}"}
    answer: Document = json.loads(answer_file.read_text(encoding="utf-8"))
    return answer


@contextlib.contextmanager
def _our_pass(best: Row | None, ran: BenchRun, workload: Workload, plan: Plan) -> Iterator[Callable[[], float | None]]:
    """Runs our fastest row once more whenever it is called: seconds of one of its requests; None where no row stands,
    or something was compiled meanwhile."""
    if best is None:
        yield lambda: None
        return
    way = Way.named(best.mode)
    config = replace(way.config, **plan.engine_options, cache_bytes=cache_bytes(workload, ran.model))
    weights = quantized(ran.model, ran.weights, plan.quantize, plan.quantize_activations)
    with Scorer(ran.model, weights, config) as scorer:
        requests = requests_in(workload, way.mode)

        def once() -> float | None:
            timing = Timing(2 if workload.in_flight > 1 else 1, 0)
            timed = measure(scorer, requests, timing, workload.cached, workload.in_flight > 1)
            sound = not (timed.errors or timed.engine_compilations or timed.backend_compilations)
            return timed.seconds / len(requests) if sound else None

        once()  # what a first pass makes ready
        yield once


def _our_scores(ran: BenchRun, workload: Workload) -> np.ndarray:
    """[items, labels] probabilities in the whole vocabulary, by the default mode and unquantized."""
    way = Way.named("auto")
    with Scorer(ran.model, ran.weights, way.config) as scorer:
        timed = measure(scorer, requests_in(workload, way.mode), Timing(1, 0), cached=False)
    if timed.errors:
        raise ConfigError(f"there are no scores to compare peers with: {timed.errors[0]}")
    return np.exp(np.array(timed.results[0][0].logprobs, np.float64))


def peer_row(
    name: str,
    answer: Document,
    workload: Workload,
    dtype: str,
    best: Row | None,
    ours: np.ndarray,
    turns: Sequence[float | None] = (),
) -> Document:
    """A peer's line; `turns` are seconds of our passes, each right before one of the peer's. An error or missing scores
    void it; other scores than ours are told, for a peer may compute in a precision of its own."""
    times = [float(t) for t in answer.get("times_s") or ()]
    void = [str(answer["error"])] if answer.get("error") else [] if times else ["no times came back"]
    facts = no_figures()
    notes = [str(answer["notes"])] if answer.get("notes") else []
    if not void:
        timed = int(answer.get("items_timed") or workload.num_items)
        if timed < workload.num_items:
            notes.append(f"{timed} of {workload.num_items} items timed")
        facts["items_per_second"] = timed / float(np.median(times))
        facts["latency_ms"] = _latencies([t * workload.num_items / timed for t in times])
        differences, void = _differences(answer, ours)
        facts |= differences
        pairs = [(mine, t * workload.num_items / timed) for mine, t in zip(turns, times, strict=False) if mine]
        if len(pairs) == len(times):
            facts["beside"] = workload.num_items / float(np.median([mine for mine, _ in pairs]))
            facts["ratio"] = float(np.median([theirs / mine for mine, theirs in pairs]))
        elif best is not None:
            notes.append("no ratio: our own passes beside it failed, or something was compiled")
    facts |= {"times_ms": [round(1e3 * t, 4) for t in times], "repeats": len(times), "void": void, "notes": notes}
    return peer_line(name, answer, workload.name, dtype, best, facts)


def no_figures() -> dict[str, Any]:
    """Of a peer that did not answer."""
    return {
        "items_per_second": None,
        "beside": None,
        "ratio": None,
        "latency_ms": {},
        "max_difference": None,
        "mean_difference": None,
        "drift": {},
    }


def peer_line(
    name: str, answer: Document, workload: str, dtype: str, best: Row | None, facts: dict[str, Any]
) -> Document:
    """A peer's line in the document; `facts` are its figures, times and the reasons not to believe them."""
    of_torch = AGAINST_TORCH["bfloat16" if dtype.endswith("bfloat16") else "float32"]
    allowed = BETWEEN_MODES["int8"] if dtype == "int8" else of_torch
    return {
        "peer": name,
        "variant": answer.get("variant"),
        "dtype": dtype,
        "workload": workload,
        "against": best.mode if best else None,
        **facts,
        "agrees": _within(facts, allowed),
        "tolerance": allowed.most,
        "versions": answer.get("versions") or {},
        "settings": answer.get("settings") or {},
    }


def _within(facts: dict[str, Any], allowed: Tolerance) -> bool:
    """Mixed traffic has no mean: its labels are drawn."""
    most, mean = facts["max_difference"], facts["mean_difference"]
    return most is not None and most <= allowed.most and (mean is None or mean <= allowed.mean)


def _latencies(seconds: list[float]) -> dict[str, float]:
    return {f"p{q}": 1e3 * float(np.percentile(seconds, q)) for q in (50, 95, 99)}


def _differences(answer: Document, ours: np.ndarray) -> tuple[dict[str, Any], list[str]]:
    theirs = np.array(answer.get("scores") or [], np.float64)
    scored = answer.get("scored_items")
    wanted = ours if scored is None else ours[scored]
    if theirs.shape != wanted.shape or not theirs.size:
        return {}, [f"scores must be {list(wanted.shape)} numbers; {list(theirs.shape)} came"]
    if not np.isfinite(theirs).all():
        return {}, ["some scores are no numbers"]
    gaps = np.abs(theirs - wanted)
    drift = Drift.between(among_labels(wanted), among_labels(theirs)).to_dict()
    return {"max_difference": float(gaps.max()), "mean_difference": float(gaps.mean()), "drift": drift}, []
