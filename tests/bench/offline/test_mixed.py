"""Mixed traffic in this process: how it is driven, what its row says, what voids it, and peers beside it.

Most tests drive a stand-in for a scorer, whose every answer and delay is known; one runs the command.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.test_mixed import FITTING, VOCABULARY
from onepass.api import Continuation, ScoreRequest, ScoreResult, Timings, Usage
from onepass.bench.ceilings import Ceilings
from onepass.bench.mixed import KINDS, MixedStream, Traffic
from onepass.bench.offline import peers
from onepass.bench.offline.mixed_peers import find_mixed_peers, mixed_peer_row
from onepass.bench.offline.mixed_row import mixed_row
from onepass.bench.offline.mixed_run import beside_small
from onepass.bench.offline.mixed_window import TrafficWindow, compare_with_serial, drive
from onepass.bench.roofline import Work
from onepass.bench.row import Row, Setting
from onepass.cli.main import main
from onepass.errors import ConfigError
from onepass.evidence.tolerance import BETWEEN_MODES

SETTING = Setting("float32", Ceilings("float32", 1e11, 1e10, 1, 1), BETWEEN_MODES["float32"], among_labels=False)


class StandIn:
    """Answers after some seconds by a rule that depends on query and item alone; `wrong` adds to answers but serial
    ones. `compile_at` is the request at which the engine compiles."""

    def __init__(self, delay: float = 0.0, wrong: float = 0.0, compile_at: int = -1, fail_at: int = -1) -> None:
        self.delay, self.wrong, self.compile_at, self.fail_at = delay, wrong, compile_at, fail_at
        self.engine = SimpleNamespace(runner=SimpleNamespace(compilations=7))
        self.submitted = self.under_way = self.most_under_way = 0

    def submit(self, request: ScoreRequest) -> "Future[ScoreResult]":
        number, future = self.submitted, Future[ScoreResult]()
        self.submitted += 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.engine.runner.compilations += number == self.compile_at
        threading.Timer(self.delay, self._settle, (future, request, number)).start()
        return future

    def _settle(self, future: "Future[ScoreResult]", request: ScoreRequest, number: int) -> None:
        self.under_way -= 1
        if number == self.fail_at:
            future.set_exception(ValueError("the step failed"))
        else:
            future.set_result(self.answer(request))

    def score_many(self, requests: list[ScoreRequest]) -> list[ScoreResult]:
        return [self.answer(request) for request in requests]

    def answer(self, request: ScoreRequest) -> ScoreResult:
        off = self.wrong if request.mode != "serial" else 0.0
        labels: Any = request.label_token_ids or ()
        items: Any = request.items
        query: Any = request.query
        scores = [[((query[0] + item[0] + label) % 97) / 1e4 + off for label in labels] for item in items]
        logprobs = [[float(np.log(max(score, 1e-9))) for score in row] for row in scores]
        branches = None
        if request.continuations is not None:
            branches = [[Continuation(-1.0 - off, (-1.0 - off,)) for _ in request.continuations] for _ in items]
        usage, timings = Usage(len(query) + sum(map(len, items))), Timings(device_ms=1.0)
        ids = [list(labels)] * len(items)
        return ScoreResult(
            scores, logprobs, logprobs, None, [[]], ids, usage, timings, request.mode, "", "stand-in", branches
        )


def run(scorer: StandIn, traffic: Traffic, seed: int = 3) -> tuple[Row, TrafficWindow]:
    stream = MixedStream(VOCABULARY, seed, traffic.kinds, traffic.clients)
    window = drive(scorer, stream, traffic)  # type: ignore[arg-type]
    found = compare_with_serial(scorer, stream, window, 10)  # type: ignore[arg-type]
    return mixed_row("auto", stream, window, found, Work(1e9, 1e6), SETTING), window


def test_every_client_sends_its_next_request_when_it_is_answered() -> None:
    scorer = StandIn(delay=0.005)
    row, window = run(scorer, Traffic(4, None, 60))
    assert row.void == []
    assert (scorer.most_under_way, window.sent, row.requests, row.repeats) == (4, 60, 60, 60)
    assert sorted(one.number for one in window.answered) == list(range(60)), "each request of the stream once"
    stream = MixedStream(VOCABULARY, 3)
    assert row.tokens == sum(stream.sizes(number).tokens for number in range(60))
    assert row.tokens_per_second == pytest.approx(row.tokens / row.window_seconds)
    assert row.achieved_per_second == pytest.approx(60 / row.window_seconds)
    assert row.reached["tflops"] == pytest.approx(1e-3 / row.window_seconds)
    assert row.max_difference == 0


def test_the_time_ends_the_traffic_and_what_is_under_way_is_counted() -> None:
    scorer = StandIn(delay=0.02)
    row, window = run(scorer, Traffic(2, 0.2))
    assert 2 <= window.sent == row.repeats <= 22
    assert scorer.under_way == 0
    assert 0.2 <= row.window_seconds < 15


def test_latencies_are_told_by_kind() -> None:
    row, window = run(StandIn(delay=0.001), Traffic(8, None, 120))
    counts = Counter(one.kind for one in window.answered)
    assert {kind: part["requests"] for kind, part in row.parts.items()} == counts
    for kind, part in row.parts.items():
        times = [1e3 * one.seconds for one in window.answered if one.kind == kind]
        assert part["p50"] == pytest.approx(np.percentile(times, 50))
        assert part["p99"] == pytest.approx(np.percentile(times, 99))


def test_a_compilation_from_the_first_request_on_voids_the_row() -> None:
    row, _ = run(StandIn(compile_at=0), Traffic(2, None, 10))
    assert row.compilations == 1
    assert row.void == ["compiled from the first request on: 1 programs of the engine, 0 of JAX"]


def test_errors_are_counted_and_void_the_row() -> None:
    row, window = run(StandIn(fail_at=4), Traffic(2, None, 10))
    assert (row.num_errors, row.repeats, window.sent) == (1, 9, 10)
    assert row.void == ["error: ValueError: the step failed"]


def test_a_request_that_is_refused_at_once_is_an_error_and_the_client_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = StandIn()
    submit = scorer.submit

    def refuse_large(request: ScoreRequest) -> "Future[ScoreResult]":
        if len(request.query or ()) > 1000:
            raise ConfigError("too long")
        return submit(request)

    monkeypatch.setattr(scorer, "submit", refuse_large)
    row, window = run(scorer, Traffic(2, None, 60))
    assert row.num_errors > 1
    assert row.num_errors + row.repeats == window.sent == 60


def test_an_engine_that_always_fails_does_not_go_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = StandIn()

    def refuse(request: ScoreRequest) -> "Future[ScoreResult]":
        raise ConfigError("closed")

    monkeypatch.setattr(scorer, "submit", refuse)
    row, _ = run(scorer, Traffic(2, 600.0))
    assert row.items_per_second is None
    assert row.void[-1] == f"none of {row.requests} requests was answered"


@pytest.mark.parametrize("kind", FITTING)
def test_a_wrong_score_of_any_kind_voids_the_row(kind: str) -> None:
    row, _ = run(StandIn(wrong=1e-3), Traffic(2, None, 6, (kind,)))
    assert row.max_difference is not None
    assert row.max_difference > 1e-4
    assert row.void[0].startswith("scores differ from serial by ")


def test_every_kind_is_among_what_is_checked() -> None:
    row, window = run(StandIn(), Traffic(4, None, 80))
    assert len({one.kind for one in window.answered}) == len(KINDS)
    assert row.checked_items >= 2 * len(KINDS)


def test_the_rate_is_told_over_that_of_small_alone() -> None:
    row, _ = run(StandIn(), Traffic(2, None, 20))
    small = replace(row, tokens_per_second=2 * row.tokens_per_second)  # type: ignore[operator]
    found = beside_small(row, small)
    assert found.over_small == pytest.approx(0.5)
    assert found.notes[-1].startswith("tokens/s are 0.50 x those of workload small alone in the same run")


def test_a_peer_is_compared_on_the_requests_that_were_answered() -> None:
    row, window = run(StandIn(), Traffic(2, None, 40))
    stream = MixedStream(VOCABULARY, 3)
    answers = []
    for number, result in window.results.items():
        scores: Any = result.scores if result.continuations is None else np.full((len(result.scores), 1), np.exp(-1.0))
        if result.continuations is not None:
            scores = np.repeat(scores, len(result.continuations[0]), axis=1).tolist()
        answers.append({"number": number, "seconds": 0.5, "scores": scores})
    answer = {"answers": answers, "error": None}
    found = mixed_peer_row("transformers-packed", answer, stream, window, "float32", row)
    assert (found["void"], found["agrees"], found["repeats"]) == ([], True, 40)
    assert found["tokens_per_second"] == pytest.approx(row.tokens / 20)
    assert found["ratio"] == pytest.approx(row.tokens_per_second / found["tokens_per_second"])  # type: ignore[operator]
    assert set(found["parts"]) == set(row.parts)
    answers[3]["scores"] = (np.array(answers[3]["scores"]) + 0.1).tolist()
    assert not mixed_peer_row("transformers-packed", answer, stream, window, "float32", row)["agrees"]
    part = {"answers": answers[:3], "error": None, "left_out": ["branches"]}
    notes = mixed_peer_row("vllm", part, stream, window, "float32", row)["notes"]
    assert notes == [
        "3 of 40 requests, one after another; the ratio is of tokens/s", "could not do kinds: branches",
    ]  # fmt: skip
    absent = mixed_peer_row("vllm", {"error": "not built"}, stream, window, "float32", row)
    assert (absent["void"], absent["ratio"]) == (["skipped: not built"], None)


def test_all_peers_of_mixed_traffic_are_those_that_take_it() -> None:
    model: Any = SimpleNamespace(source=SimpleNamespace(kind="folder"))
    assert find_mixed_peers(["all"], model).names == ("transformers-packed", "vllm")
    assert find_mixed_peers(["cheap"], model).names == ("transformers-packed",)


def test_transformers_answers_the_same_requests(
    reference_python: Path | None, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Labels and continuations, packed, against the library."""
    if reference_python is None:
        pytest.skip("no reference environment")
    from onepass import Scorer

    folder = checkpoint("qwen3")
    asked = [
        {"query": [5, 9, 77, 300], "items": [[31, 32], [44]], "labels": [20, 333, 100], "continuations": []},
        {"query": [8, 41, 7], "items": [[55, 56, 57], [9]], "labels": [], "continuations": [[1, 2, 3], [70], [70, 5]]},
    ]
    requests = [{"number": n, "kind": "tiny", **one} for n, one in enumerate(asked)]
    job = {"weights": str(folder), "dtype": "float32", "seconds": 60, "threads": 2, "requests": requests}
    answer = peers.ask(Path(__file__).parents[3] / "benchmarks" / "peers", "transformers-packed", job, tmp_path)
    assert answer["error"] is None
    with Scorer.load(str(folder), dtype="float32") as scorer:
        first: Any = scorer.score(asked[0]["query"], asked[0]["items"], label_token_ids=asked[0]["labels"])
        second: Any = scorer.score(asked[1]["query"], asked[1]["items"], continuations=asked[1]["continuations"])
    assert np.abs(np.array(answer["answers"][0]["scores"]) - np.exp(first.logprobs)).max() < 1e-4
    wanted = np.exp([[one.mean_logprob for one in row] for row in second.continuations])
    assert np.abs(np.array(answer["answers"][1]["scores"]) - wanted).max() < 1e-4


@pytest.mark.usefixtures("small_ceilings")
def test_the_command_prints_mixed_traffic_beside_small_alone(
    checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", str(checkpoint("qwen3")), "--workload", "mixed", "--kinds", ",".join(FITTING), "--clients", "3"]
    command += ["--num-requests", "30", "--dtype", "float32", "--repeats", "2", "--seed", "1"]
    status = main([*command, "--json", "--out", str(tmp_path)])
    captured = capsys.readouterr()
    assert status == 0, captured.out
    document = json.loads(captured.out.splitlines()[-1])
    mixed, small = document["rows"]
    assert (mixed["workload"], small["workload"], small["purpose"]) == (f"mixed:{'+'.join(FITTING)}", "small", "alone")
    assert mixed["over_small"] == pytest.approx(mixed["tokens_per_second"] / small["tokens_per_second"])
    assert (mixed["compilations"], mixed["num_errors"], mixed["repeats"]) == (0, 0, 30)
    assert 0 < mixed["reached"]["fraction"] < 1
    assert "latencies by kind" in captured.out
    assert "those of workload small alone in the same run" in captured.out
    (written,) = tmp_path.glob("bench-mixed-*.json")
    assert "## Latencies by kind" in written.with_suffix(".md").read_text()
    assert "Latencies by kind" in written.with_suffix(".html").read_text()
    assert main(["bench", "compare", str(written), str(written), "--json"]) == 0
    names = [change["name"] for change in json.loads(capsys.readouterr().out)["changes"]]
    assert names == [f"mixed:{'+'.join(FITTING)} float32 auto", "small float32 auto"]
