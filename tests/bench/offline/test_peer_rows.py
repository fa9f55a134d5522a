"""What is asked of peers and made of their answers. The peer here is a small script that speaks the interface of
benchmarks/peers; the real ones have tests of their own in test_peers."""

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onepass.bench.offline.measure import Timing
from onepass.bench.offline.peers import Peers, ask, peer_row, run_peers
from onepass.bench.offline.run import Plan, bench
from onepass.bench.offline.turns import Turns
from onepass.bench.workloads import Workload
from onepass.errors import ConfigError
from onepass.loading.model import Model
from onepass.models.weights import Weights

RUN = """\
import argparse, json, socket
parser = argparse.ArgumentParser()
for name in ("--peer", "--job", "--out", "--timeout"):
    parser.add_argument(name)
parser.add_argument("--list", action="store_true")
parser.add_argument("--json", action="store_true")
args = parser.parse_args()
if args.list:
    common = {"ready": True, "devices": ["cpu", "cuda"], "needs_gguf": False, "int8": ""}
    others = {"good": {}, "transformers-batched": {}, "vllm": {}, "absent": {"ready": False}}
    others["gguf"] = {"needs_gguf": True, "int8": "its blocks"}
    print(json.dumps([{"peer": name, **common, **own} for name, own in others.items()]))
elif args.peer == "silent":
    raise SystemExit("nothing to say")
else:
    job = json.load(open(args.job))
    scores = [[0.25] * len(job["labels"]) for _ in job["items"]]
    times = [0.5] * job["repeats"]
    if "turns" in job and args.peer != "impatient":
        with socket.socket(socket.AF_UNIX) as ours:
            ours.connect(job["turns"])
            for _ in times:
                ours.sendall(b"?")
                ours.recv(1)
    json.dump({"peer": args.peer, "times_s": times, "scores": scores, "error": None}, open(args.out, "w"))
"""
OURS = np.full((8, 3), 0.25)
ANSWER: dict[str, Any] = {"times_s": [0.4, 0.5, 0.6], "scores": OURS.tolist(), "error": None}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.py").write_text(RUN, encoding="utf-8")
    return tmp_path


def model(kind: str) -> Any:
    return SimpleNamespace(source=SimpleNamespace(kind=kind))


def test_all_means_what_can_run_here(folder: Path) -> None:
    assert Peers.find(["all"], model("folder"), folder).names == ("good", "transformers-batched", "vllm")
    assert Peers.find(["cheap"], model("gguf"), folder).names == ("good", "gguf")
    assert Peers.find(["absent", "cheap"], model("folder"), folder).names == ("absent", "good")
    with pytest.raises(ConfigError, match=r"peers must be all, cheap or some of good, .*; got better"):
        Peers.find(["better"], model("folder"), folder)


def test_peers_without_eight_bits_are_left_out_of_a_quantized_run_and_named(folder: Path) -> None:
    found = Peers.find(["cheap"], model("gguf"), folder, "int8")
    assert (found.names, found.left_out, found.forms) == (("gguf",), ("good",), {"gguf": "its blocks"})
    assert Peers.find(["cheap"], model("gguf"), folder, "gguf").left_out == ()


def test_a_peer_answers_in_a_process_of_its_own(folder: Path, tmp_path: Path) -> None:
    job = {"labels": [1, 2, 3], "items": [[1]] * 8, "repeats": 4}
    answer = ask(folder, "good", job, tmp_path)
    assert (answer["times_s"], np.shape(answer["scores"])) == ([0.5] * 4, (8, 3))
    assert json.loads((tmp_path / "good-job.json").read_text()) == job


def test_a_peer_that_leaves_no_answer_is_void(folder: Path, tmp_path: Path, workload: Workload) -> None:
    answer = ask(folder, "silent", {}, tmp_path)
    row = peer_row("silent", answer, workload, "float32", None, OURS)
    assert row["void"] == ["exited with 1: nothing to say"]
    assert row["items_per_second"] is None


def test_a_peers_line_has_the_ratio_and_the_difference(workload: Workload) -> None:
    best: Any = SimpleNamespace(mode="auto", items_per_second=32.0)
    row = peer_row(
        "good", {**ANSWER, "scores": (OURS + 1e-6).tolist()}, workload, "float32", best, OURS, [0.2, 0.25, 0.4]
    )
    assert (row["items_per_second"], row["beside"], row["ratio"], row["against"]) == (16.0, 32.0, 2.0, "auto")
    assert row["max_difference"] == pytest.approx(1e-6)
    assert (row["agrees"], row["void"]) == (True, [])
    for turns in ([], [0.2, None, 0.4]):
        alone = peer_row("good", ANSWER, workload, "float32", best, OURS, turns)
        assert alone["ratio"] is None
        assert alone["notes"][0].startswith("no ratio: our own passes beside it failed")


@pytest.mark.parametrize("in_flight", [1, 3])
def test_our_fastest_row_and_a_peer_are_timed_by_turns(
    in_flight: int, folder: Path, loaded: tuple[Model, Weights]
) -> None:
    sizes = {"query": 40, "items": 8, "item_tokens": 6}
    plan = Plan(modes=("extend",), timing=Timing(2, 1), serial_items=1, overrides=sizes, in_flight=in_flight)
    ran = bench(loaded, plan, lambda row: None)
    row, impatient = run_peers(Peers(folder, ("good", "impatient")), ran, plan, lambda line: None)
    assert row["items_per_second"] == 16.0
    assert row["beside"] > 0
    # The peer's passes all take as long: the ratio is to the median of ours, but for the mean of two.
    assert row["ratio"] == pytest.approx(row["beside"] / 16.0, rel=0.5)
    assert row["beside"] != ran.rows[0].items_per_second  # measured anew
    assert (impatient["items_per_second"], impatient["ratio"]) == (16.0, None)


def test_turns_end_with_the_peer(tmp_path: Path) -> None:
    turns = Turns(tmp_path / "turns", lambda: 1.0)
    with turns.offered(), socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(turns.path))
        peer.sendall(b"?")
        assert peer.recv(1)
    assert turns.seconds == [1.0]
    with turns.offered():  # nobody comes
        pass
    assert turns.seconds == [1.0]
    assert not turns.path.exists()


def test_other_scores_are_told_and_missing_ones_are_void(workload: Workload) -> None:
    row = peer_row("good", {**ANSWER, "scores": (OURS + 0.1).tolist()}, workload, "float32", None, OURS)
    assert (row["agrees"], row["void"]) == (False, [])
    row = peer_row("good", {**ANSWER, "scores": OURS[:3].tolist()}, workload, "float32", None, OURS)
    assert row["void"] == ["scores must be [8, 3] numbers; [3, 3] came"]
    row = peer_row("good", {**ANSWER, "scores": (OURS * np.nan).tolist()}, workload, "float32", None, OURS)
    assert row["void"] == ["some scores are no numbers"]


def test_a_quantized_peer_tells_its_drift_and_may_drift_as_far_as_validate_allows(workload: Workload) -> None:
    ours = np.linspace(0.1, 0.3, 24).reshape(8, 3)
    theirs = ours + np.array([0.0, 0.0, 0.03])
    answer = {**ANSWER, "scores": theirs.tolist()}
    row = peer_row("good", answer, workload, "int8", None, ours)
    among = np.abs(theirs / theirs.sum(1, keepdims=True) - ours / ours.sum(1, keepdims=True))
    assert (row["agrees"], row["void"], row["tolerance"]) == (True, [], 5e-2)
    assert (row["max_difference"], row["mean_difference"]) == (pytest.approx(0.03), pytest.approx(0.01))
    assert (row["drift"]["max"], row["drift"]["mean"]) == (pytest.approx(among.max()), pytest.approx(among.mean()))
    assert row["drift"]["items"] == 8
    assert not peer_row("good", answer, workload, "float32", None, ours)["agrees"]
    farther = {**ANSWER, "scores": (ours + 0.02).tolist()}
    assert not peer_row("good", farther, workload, "int8", None, ours)["agrees"]  # on average


def test_a_sampled_peer_is_counted_by_what_it_timed(workload: Workload) -> None:
    answer = {**ANSWER, "scores": OURS[[0, 7]].tolist(), "scored_items": [0, 7], "items_timed": 2}
    row = peer_row("good", answer, workload, "float32", None, OURS)
    assert (row["items_per_second"], row["latency_ms"]["p50"]) == (4.0, 2000.0)
    assert row["notes"] == ["2 of 8 items timed"]
