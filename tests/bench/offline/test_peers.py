"""Peers score what onepass scores: the same sequences, the same definition, whatever way they share the query.

Speed is no matter here, and compilation is off. Needs the reference environment, which has PyTorch and llama.cpp.
"""

import hashlib
import importlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints
from onepass import Scorer
from reference.store_values import load_stored

PEERS = Path(__file__).parents[3] / "benchmarks" / "peers"
TOLERANCE = 1e-4
# llama.cpp multiplies the file's 4-bit weights with activations rounded to 8 bits.
QUANTISED_TOLERANCE = 0.05
QUERY = [5, 300, 41, 7, 222, 90, 13, 401, 77, 350, 8]
ITEMS = [[31, 32, 33], [44], [55, 56, 57, 58, 59, 60, 61], [31, 32], [70, 71, 72, 73], [44], [99, 98, 97]]
LABELS = [20, 333, 100]
ARRANGEMENTS = [
    ("transformers-batched", "qwen3"),
    ("transformers-prefix", "smollm2"),
    ("transformers-packed", "qwen3"),
    ("transformers-flex", "qwen3"),
]
Answer = dict[str, Any]
Ask = Callable[..., Answer]


@pytest.fixture
def ask(reference_python: Path | None, tmp_path: Path) -> Ask:
    """`ask(peer, job)`: run a peer in the reference environment and return its answer."""
    if reference_python is None:
        pytest.skip("no reference environment: tests/reference/build_env.py did not find it cheap")
    return lambda peer, job: run_peer([str(reference_python), "--here"], peer, job, tmp_path)


def run_peer(how: list[str], peer: str, job: dict[str, Any], folder: Path, peers: Path = PEERS) -> Answer:
    """`how` is a Python and run.py's choice of environment; the command must succeed whatever the peer does."""
    asked, out = folder / "job.json", folder / "out.json"
    asked.write_text(json.dumps(job), encoding="utf-8")
    command = [how[0], str(peers / "run.py"), *how[1:], "--peer", peer, "--job", str(asked), "--out", str(out)]
    # Spinning threads take minutes where cores are shared.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answer: Answer = json.loads(out.read_text(encoding="utf-8"))
    assert answer["peer"] == peer
    return answer


def job_for(weights: Path, **changes: Any) -> dict[str, Any]:
    asked = {"query": QUERY, "items": ITEMS, "labels": LABELS}
    settings = {"batch_items": 3, "compile": False}  # several forwards, the last one not full
    return {
        "weights": str(weights),
        "dtype": "float32",
        **asked,
        "repeats": 2,
        "warmup": 1,
        "threads": 2,
        "sample": None,
        "settings": settings,
        **changes,
    }


@pytest.fixture(scope="module")
def onepass_scores(checkpoint: Callable[[str], Path]) -> Callable[[str], np.ndarray]:
    @cache
    def score(name: str) -> np.ndarray:
        with Scorer.load(str(checkpoint(name)), dtype="float32") as scorer:
            return np.array(scorer.score(QUERY, ITEMS, label_token_ids=LABELS, mode="serial").scores)

    return score


@pytest.mark.parametrize(("peer", "name"), ARRANGEMENTS)
def test_transformers_scores_what_onepass_scores(
    peer: str, name: str, ask: Ask, checkpoint: Callable[[str], Path], onepass_scores: Callable[[str], np.ndarray]
) -> None:
    answer = ask(peer, job_for(checkpoint(name)))
    assert answer["error"] is None
    assert answer["scored_items"] == list(range(len(ITEMS)))
    expected = onepass_scores(name)
    assert np.abs(np.array(answer["scores"]) - expected).max() <= TOLERANCE
    # Items must differ by far more than the tolerance, or a mixed-up order would pass.
    assert np.ptp(expected, axis=0).max() > 20 * TOLERANCE
    assert len(answer["times_s"]) == 2
    assert all(seconds > 0 for seconds in answer["times_s"])


def test_a_serial_peer_may_score_a_sample(
    ask: Ask, checkpoint: Callable[[str], Path], onepass_scores: Callable[[str], np.ndarray]
) -> None:
    answer = ask("transformers-serial", job_for(checkpoint("smollm2"), sample=3))
    assert answer["items_timed"] == 3
    assert answer["scored_items"] == [0, 2, 4]
    assert np.abs(np.array(answer["scores"]) - onepass_scores("smollm2")[[0, 2, 4]]).max() <= TOLERANCE


def test_llama_cpp_scores_the_real_model(ask: Ask, smollm2_gguf: Path) -> None:
    cases = [case for case in load_stored("smollm2-135m")["cases"] if len(case["tokens"]) >= 12]
    case = min(cases, key=lambda case: len(case["tokens"]))
    query, item = case["tokens"][:-4], case["tokens"][-4:]
    asked = {"query": query, "items": [[9], item, item[:2]], "labels": case["labels"], "repeats": 1, "warmup": 0}
    answer = ask("llama.cpp", job_for(smollm2_gguf, gguf=str(smollm2_gguf), **asked))
    assert answer["error"] is None
    expected = [math.exp(logprob) for logprob in case["logprobs"]]
    assert np.abs(np.array(answer["scores"][1]) - expected).max() <= QUANTISED_TOLERANCE
    assert np.abs(np.array(answer["scores"][2]) - expected).max() > QUANTISED_TOLERANCE


def test_ctranslate2_scores_what_onepass_scores(
    checkpoint: Callable[[str], Path], onepass_scores: Callable[[str], np.ndarray], tmp_path: Path
) -> None:
    answer = run_peer([sys.executable], "ctranslate2", job_for(checkpoint("qwen3")), tmp_path)
    if answer["error"] is not None and "not built" in answer["error"]:
        pytest.skip("no ctranslate2 environment: `benchmarks/peers/run.py --build` makes it")
    assert answer["error"] is None
    assert np.abs(np.array(answer["scores"]) - onepass_scores("qwen3")).max() <= TOLERANCE


@pytest.mark.parametrize("peer", ["ctranslate2", "transformers-packed"])
def test_a_peer_in_eight_bits_scores_nearly_what_onepass_scores(
    peer: str,
    reference_python: Path | None,
    checkpoint: Callable[[str], Path],
    onepass_scores: Callable[[str], np.ndarray],
    tmp_path: Path,
) -> None:
    """Further off than float32 ever is: 8 bits were multiplied."""
    how = [sys.executable] if peer == "ctranslate2" else [str(reference_python), "--here"]
    if reference_python is None and peer != "ctranslate2":
        pytest.skip("no reference environment: tests/reference/build_env.py did not find it cheap")
    answer = run_peer(how, peer, job_for(checkpoint("qwen3"), quantize="int8"), tmp_path)
    if answer["error"] is not None and "not built" in answer["error"]:
        pytest.skip("no ctranslate2 environment: `benchmarks/peers/run.py --build` makes it")
    assert answer["error"] is None
    furthest = np.abs(np.array(answer["scores"]) - onepass_scores("qwen3")).max()
    assert 2 * TOLERANCE < furthest < QUANTISED_TOLERANCE


def test_vllm_scores_what_onepass_scores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The query fills one block of 32 tokens that all items share, and part of a second one that they compute again."""
    # vLLM's CPU attention takes heads of 32 and more.
    monkeypatch.setitem(checkpoints.VARIANTS, "qwen3", {**checkpoints.VARIANTS["qwen3"], "head_dim": 32})
    weights = checkpoints.make_checkpoint(tmp_path / "weights", "qwen3")
    query = list(range(101, 141))
    answer = run_peer([sys.executable], "vllm", job_for(weights, query=query), tmp_path)
    if answer["error"] is not None and "not built" in answer["error"]:
        pytest.skip("no vllm environment (3.5 GB): `benchmarks/peers/run.py --build` makes it")
    assert answer["error"] is None
    with Scorer.load(str(weights), dtype="float32") as scorer:
        expected = np.array(scorer.score(query, ITEMS, label_token_ids=LABELS, mode="serial").scores)
    assert np.abs(np.array(answer["scores"]) - expected).max() <= TOLERANCE
    assert np.ptp(expected, axis=0).max() > 20 * TOLERANCE
    # The last pass computed the whole query once, and nothing of an earlier pass was left.
    tokens = sum(len(item) for item in ITEMS)
    assert answer["settings"]["computed_tokens"] == 40 + (len(ITEMS) - 1) * 8 + tokens


@pytest.fixture
def bare_peers(tmp_path: Path) -> Path:
    """A copy of benchmarks/peers in a checkout where no environment is built."""
    folder = tmp_path / "checkout" / "benchmarks" / "peers"
    shutil.copytree(PEERS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_a_peer_without_its_environment_says_how_to_build_it(bare_peers: Path, tmp_path: Path) -> None:
    answer = run_peer([sys.executable], "vllm", job_for(tmp_path), tmp_path, bare_peers)
    assert answer["error"] == "the environment 'vllm' is not built; --build builds it"
    assert not (tmp_path / "checkout" / ".peers").exists()


def test_an_environment_is_ready_while_both_its_lists_are_as_it_was_built_from(bare_peers: Path) -> None:
    built = bare_peers.parents[1] / ".peers" / "vllm"
    (built / "bin").mkdir(parents=True)
    (built / "bin" / "python").touch()
    removed = bare_peers / "vllm.removed.txt"
    lists = (bare_peers / "vllm.txt").read_bytes() + removed.read_bytes()
    (built / "built-from.sha256").write_text(hashlib.sha256(lists).hexdigest() + "\n")
    assert listed(bare_peers)["vllm"]["ready"]
    removed.write_text("torchaudio\n")
    assert not listed(bare_peers)["vllm"]["ready"]


def listed(peers: Path) -> dict[str, dict[str, Any]]:
    done = subprocess.run([sys.executable, str(peers / "run.py"), "--list", "--json"], capture_output=True, check=True)
    return {row["peer"]: row for row in json.loads(done.stdout)}


class Slow:
    """A peer whose passes take so many seconds of a clock that stands still otherwise."""

    serial, settings, versions, notes = False, {}, {}, ""

    def __init__(self, seconds: float, clock: list[float]) -> None:
        self.seconds, self.clock = seconds, clock

    def prepare(self, items: list[list[int]]) -> int:
        return len(items)

    def reset(self) -> None:
        pass

    def score(self, prepared: int) -> list[list[float]]:
        self.clock[0] += self.seconds
        return [[0.5] * len(LABELS)] * prepared


@pytest.mark.parametrize(("seconds", "warm", "timed"), [(0.1, 2, 10), (5.0, 2, 9), (12.0, 2, 5), (30.0, 1, 5)])
def test_a_slow_peer_is_timed_five_times_at_least(
    seconds: float, warm: int, timed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PEERS))
    job = importlib.import_module("job")
    clock = [0.0]
    monkeypatch.setattr(job.time, "perf_counter", lambda: clock[0])
    asked = job.Job(Path("weights"), "float32", QUERY, ITEMS, LABELS, seconds=40)
    answer = job.measure(asked, Slow(seconds, clock))
    assert answer["times_s"] == pytest.approx([seconds] * timed)
    assert clock[0] == pytest.approx((warm + timed) * seconds)


def test_a_failing_peer_says_why(ask: Ask, tmp_path: Path) -> None:
    answer = ask("llama.cpp", job_for(tmp_path, gguf=str(tmp_path / "missing.gguf")))
    assert "missing.gguf" in answer["error"]
    assert answer["times_s"] == answer["scores"] == []


def test_a_peer_that_cannot_start_says_why(tmp_path: Path) -> None:
    """This Python has no PyTorch: the script ends at its first import."""
    answer = run_peer([sys.executable, "--here"], "transformers-packed", job_for(tmp_path), tmp_path)
    assert "exited with 1" in answer["error"]


def test_an_empty_item_is_refused(ask: Ask, tmp_path: Path) -> None:
    answer = ask("llama.cpp", job_for(tmp_path, items=[[1], []]))
    assert "empty items [1]" in answer["error"]


def test_the_list_names_every_peer_and_its_environment() -> None:
    rows = listed(PEERS)
    assert {"transformers-serial", "openvino", "ctranslate2", "vllm", *(peer for peer, _ in ARRANGEMENTS)} < set(rows)
    assert all(isinstance(row["ready"], bool) for row in rows.values())
    assert rows["llama.cpp"]["needs_gguf"]
    assert "cuda" in rows["transformers-flex"]["devices"]
    assert rows["vllm"]["devices"] == ["cpu"]
