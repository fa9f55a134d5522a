"""`onepass bench --url` against a real server with a tiny model, and what voids a row.

The negative controls put a small proxy before the real server that tells one lie: a wrong score, a compilation, a 503.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import orjson
import pytest
import uvicorn

from onepass.bench.online import target as http_target
from onepass.bench.online.requests import MixPart, Requests
from onepass.bench.online.row import HttpRow
from onepass.bench.online.run import HttpBench, HttpPlan, bench_http
from onepass.bench.online.server import OwnServer, growth_per_minute, own_server, peak_growth_per_minute
from onepass.bench.online.target import Counts
from onepass.bench.online.window import ScoredRequest, Window
from onepass.bench.workloads import Shape
from onepass.cli.main import main
from onepass.errors import ConfigError, EngineUnavailable

TINY = MixPart("tiny", Shape(40, 8, 6, 6))
SIZES = ["--query-tokens", "40", "--items", "8", "--item-tokens", "6"]
Twist = Callable[[str, bytes, int, bytes], tuple[int, bytes]]  # path, what was asked, what was answered


@pytest.fixture(scope="module")
def server(checkpoint: Callable[[str], Path]) -> Iterator[OwnServer]:
    options = ["--dtype", "float32", "--max-requests", "8"]
    with own_server(str(checkpoint("qwen3")), options, {**os.environ, "JAX_PLATFORMS": "cpu"}) as serving:
        yield serving


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has all its programs before it is ready, so nothing compiles that a count could miss. That counts are
    waited for is seen where a test does without this."""
    monkeypatch.setattr(http_target, "TOLD_WITHIN_SECONDS", 0.2)


def plan(url: str, **changes: Any) -> HttpPlan:
    return replace(HttpPlan(url, (TINY,), clients=(2,), seconds=1.0, check_items=4), **changes)


def rows(asked: HttpPlan) -> list[HttpRow]:
    return asyncio.run(bench_http(asked, None, lambda row: None)).rows


def test_the_warm_up_goes_on_until_its_requests_are_prepared() -> None:
    """Else its rate is that of the driver, which makes them as it goes, and too few are prepared for the window."""
    counts = Counts(3, 0)
    target = SimpleNamespace(dtype="float32", counts=lambda: asyncio.sleep(0, counts))
    bench = HttpBench(plan("http://127.0.0.1:1"), target, Requests((TINY,), 1000))  # type: ignore[arg-type]
    answer = ScoredRequest(0, "tiny", 8, 88, 0, 0.01, "packed", {})
    rounds: list[Window] = []

    async def send(seconds: float) -> Window:
        window = Window(sent=100, scored=[answer])
        taken = [bench.source.take() for _ in range(window.sent)]
        assert len({one.number for one in taken}) == len(taken)
        window.made_late, bench.source.made_late = bench.source.made_late, 0
        rounds.append(window)
        return window

    window, _ = asyncio.run(bench._warm_up(send))
    assert [one.made_late > 0 for one in rounds] == [True, False]
    assert window is rounds[-1]


@contextmanager
def lying(url: str, twist: Twist) -> Iterator[str]:
    """The address of a proxy to the server at `url` whose answers go through `twist`."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked, more = b"", True
        while more:
            message = await receive()
            asked, more = asked + message.get("body", b""), message.get("more_body", False)
        async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
            answer = await client.request(scope["method"], scope["path"], content=asked)
        status, body = twist(scope["path"], asked, answer.status_code, answer.content)
        await send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(body))]}
        )
        await send({"type": "http.response.body", "body": body})

    proxy = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", ws="none", log_level="error"))
    thread = threading.Thread(target=proxy.run)
    thread.start()
    try:
        while not proxy.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{proxy.servers[0].sockets[0].getsockname()[1]}"
    finally:
        proxy.should_exit = True
        thread.join(20)


def test_a_closed_loop_has_every_figure(server: OwnServer) -> None:
    (row,) = rows(plan(server.url))
    assert row.void == []
    assert (row.mode, row.workload, row.dtype) == ("http-closed-2", "tiny", "float32")
    assert row.requests == row.repeats == row.statuses["200"] > 2
    assert row.num_items == 8 * row.repeats
    assert row.tokens == 88 * row.repeats
    assert row.cached_tokens == 0, "every query is cold"
    assert row.items_per_second == pytest.approx(row.num_items / row.window_seconds)
    assert row.latency_ms["min"] <= row.latency_ms["p50"] <= row.latency_ms["p95"] <= row.latency_ms["p99"]
    assert row.split_ms["http"] < 35, "an answer does not wait for the acknowledgement of its head"
    assert row.split_ms.keys() == {"queue", "encode", "device", "http"}
    assert 0 < row.split_ms["device"] < row.latency_ms["p50"]
    assert (row.compilations, row.restarts, row.overloaded, row.checked_items) == (0, 0, 0, 4)
    assert row.max_difference is not None
    assert row.max_difference < 1e-5
    assert 0 < row.client_cpu < 1


def test_a_server_with_quantized_weights_is_judged_as_such(checkpoint: Callable[[str], Path]) -> None:
    options = ["--dtype", "bfloat16", "--quantize", "fp8"]
    with own_server(str(checkpoint("qwen3")), options, {**os.environ, "JAX_PLATFORMS": "cpu"}) as serving:
        (row,) = rows(plan(serving.url))
    assert (row.dtype, row.void, row.tolerance) == ("fp8", [], {"max": 1e-1, "mean": 3e-2})


def test_texts_of_mixed_sizes_arrive_at_the_rate(server: OwnServer) -> None:
    mix = (TINY, MixPart("smaller", Shape(40, 4, 6, 6)))
    (row,) = rows(plan(server.url, mix=mix, kind="text", loop="open", rates=(20.0,), seconds=2.0))
    assert row.void == []
    assert (row.mode, row.workload, row.offered_per_second) == ("http-open-20", "tiny,smaller", 20.0)
    assert 2 < row.achieved_per_second < 30
    assert 64 - 4 < row.tokens / row.repeats < 88 + 4, "texts are as long as the workload says"
    assert row.lag_ms["p50"] < 1000, "how far behind the schedule they were sent; a busy machine is"
    assert row.parts.keys() == {"tiny", "smaller"}
    assert sum(part["requests"] for part in row.parts.values()) == row.repeats


@pytest.mark.parametrize(
    "share",
    [MixPart("decisions", Shape(40, 5, 6, 6)), MixPart("grid", Shape(40, 3, 6, 6, branches=2, branch_tokens=5))],
    ids=lambda share: share.name,
)
def test_typed_questions_are_posted_as_text(server: OwnServer, impatient: None, share: MixPart) -> None:
    (row,) = rows(plan(server.url, mix=(share,), kind="text"))
    assert (row.void, row.workload) == ([], share.name)
    assert row.num_items == (5 if share.name == "decisions" else 6) * row.repeats
    assert row.checked_items == 4
    assert row.max_difference is not None
    assert row.max_difference < 1e-5


def test_a_wrong_decision_voids_the_row(server: OwnServer, impatient: None) -> None:
    def twist(path: str, asked: bytes, status: int, body: bytes) -> tuple[int, bytes]:
        if path == "/v1/decisions" and b'"serial"' not in asked:
            payload = orjson.loads(body)
            for answer in payload["answers"]:
                answer["probabilities"][0]["probability"] += 1e-3
            body = orjson.dumps(payload)
        return status, body

    with lying(server.url, twist) as url:
        (row,) = rows(plan(url, mix=(MixPart("decisions", Shape(40, 5, 6, 6)),), kind="text"))
    assert row.void[-1].startswith("scores differ from serial by 1.0e-03")


def test_a_grid_of_token_ids_is_refused(server: OwnServer) -> None:
    with pytest.raises(ConfigError, match="give --as text"):
        rows(plan(server.url, mix=(MixPart("grid", Shape(40, 3, 6, 6, branches=2, branch_tokens=5)),)))


@pytest.mark.slow
def test_a_repeated_query_is_found_on_the_server(server: OwnServer) -> None:
    again = MixPart("repeat-query", Shape(300, 8, 6, 6, cached=True))
    (row,) = rows(plan(server.url, mix=(again,)))
    assert row.void == []
    assert row.cached_tokens == 300 * row.repeats


@pytest.mark.slow
def test_a_ramp_ends_with_the_highest_rate_within_the_limit(server: OwnServer) -> None:
    told: list[HttpRow] = []
    asked = plan(server.url, loop="ramp", rates=(30.0,), p99_ms=2000.0, check_items=2)
    row = asyncio.run(bench_http(asked, None, told.append)).rows[0]
    assert (row.mode, row.void, row.limit_ms) == ("http-ramp", [], 2000.0)
    within = [step["rate"] for step in row.steps if step["within"]]
    beyond = [step for step in row.steps if not step["within"]]
    assert beyond, "at some rate more than eight requests are under way, which the server refuses"
    assert max(within) == row.offered_per_second < min(step["rate"] for step in beyond)
    assert all(step["why"] for step in beyond)
    assert [step["rate"] for step in row.steps] == [one.offered_per_second for one in told]


def test_more_clients_than_the_server_admits_void_a_row(server: OwnServer, impatient: None) -> None:
    (row,) = rows(plan(server.url, clients=(16,)))
    assert row.overloaded > 0
    assert any("were refused with status 429 (--overload allows it)" in why for why in row.void)


def test_a_wrong_score_voids_the_row(server: OwnServer, impatient: None) -> None:
    def twist(path: str, asked: bytes, status: int, body: bytes) -> tuple[int, bytes]:
        if path == "/v1/score" and b'"serial"' not in asked:
            payload = orjson.loads(body)
            payload["scores"] = [[score + 1e-3 for score in row] for row in payload["scores"]]
            body = orjson.dumps(payload)
        return status, body

    with lying(server.url, twist) as url:
        (row,) = rows(plan(url))
    assert row.items_per_second is not None
    assert row.void[-1].startswith("scores differ from serial by 1.0e-03")


def test_a_compilation_in_the_window_voids_the_row(server: OwnServer, impatient: None) -> None:
    """It compiles in every window, so that trying again does not help."""
    compiled = 0

    def twist(path: str, asked: bytes, status: int, body: bytes) -> tuple[int, bytes]:
        nonlocal compiled
        if path == "/metrics":
            compiled += 1
            lines = [line for line in body.decode().splitlines() if not line.startswith("onepass_engine_compilations_")]
            body = "\n".join([*lines, f"onepass_engine_compilations_total {compiled}.0"]).encode()
        return status, body

    with lying(server.url, twist) as url:
        (row,) = rows(plan(url, warm_up_seconds=1.0, attempts=2))
    assert row.compilations == 1
    assert row.void == ["compiled in the timed window: 1 programs by onepass_engine_compilations_total"]
    assert row.notes[-1].endswith("because something compiled in them: 1")


def test_a_5xx_voids_the_row(server: OwnServer, impatient: None) -> None:
    """Every other answer is one: two clients get at least one of either, however slow the machine."""
    num_scored = 0

    def twist(path: str, asked: bytes, status: int, body: bytes) -> tuple[int, bytes]:
        nonlocal num_scored
        if path == "/v1/score" and b'"serial"' not in asked:
            num_scored += 1
            if num_scored % 2 == 0:
                return 503, b'{"message": "the engine process was ended by signal 9"}'
        return status, body

    with lying(server.url, twist) as url:
        (row,) = rows(plan(url))
    assert row.statuses["503"] > 0
    assert row.repeats > 0
    assert row.void[0] == "error: status 503: the engine process was ended by signal 9"


def test_a_serial_check_that_fails_voids_the_row(server: OwnServer, impatient: None) -> None:
    windows = 0

    def twist(path: str, asked: bytes, status: int, body: bytes) -> tuple[int, bytes]:
        nonlocal windows
        windows += path == "/metrics"
        if b'"serial"' in asked and windows:
            return 400, b'{"message": "no such mode"}'
        return status, body

    with lying(server.url, twist) as url:
        (row,) = rows(plan(url))
    assert row.void[-1] == "the serial check was answered with status 400: no such mode"


def test_the_command_leaves_documents_that_can_be_compared(
    server: OwnServer,
    impatient: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = ["bench", "--url", server.url, *SIZES, "--clients", "1", "--seconds", "1", "--api-key", "secret"]
    monkeypatch.setattr(sys, "argv", ["onepass", *command])
    paths = []
    for name in ("a", "b"):
        assert main([*command, "--json", "--out", str(tmp_path / name)]) == 0
        captured = capsys.readouterr()
        document = json.loads(captured.out.splitlines()[-1])
        assert "  http-closed-1 " in captured.out
        assert "float32 small http-closed-1: " in captured.err
        (path,) = (tmp_path / name).glob("bench-small-over-http-*.json")
        assert json.loads(path.read_text()) == document
        paths.append(path)
    (row,) = document["rows"]
    assert {"mode", "workload", "items_per_second", "latency_ms", "tokens_per_second", "errors"} <= row.keys()
    assert document["hardware"]["platform"] == "cpu"
    assert "secret" not in json.dumps(document)
    page = paths[0].with_suffix(".html").read_text()
    assert page.count("<svg") == 2  # throughput and latencies
    assert "| http-closed-1 |" in paths[0].with_suffix(".md").read_text()
    assert main(["bench", "compare", *map(str, paths), "--json"]) in (0, 1)
    (change,) = json.loads(capsys.readouterr().out)["changes"]
    assert change["name"] == "small float32 http-closed-1"
    assert change["throughput"] > 0


def test_a_server_that_is_not_there_is_told_in_one_line() -> None:
    with pytest.raises(EngineUnavailable, match=r"no server answers at http://127\.0\.0\.1:1"):
        rows(plan("http://127.0.0.1:1"))


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="did not become ready"), own_server(str(tmp_path / "nothing")):
        pass


def test_memory_of_both_processes_is_read(server: OwnServer) -> None:
    memory = server.memory()
    assert memory.front > 20e6
    assert memory.engine > memory.front


def test_growth_is_the_slope_of_the_second_half() -> None:
    rising_then_flat = [(float(s), 1000 * min(s, 30)) for s in range(60)]
    assert growth_per_minute(rising_then_flat) == pytest.approx(0.0, abs=1e-6)
    assert growth_per_minute([(float(s), 500 * s) for s in range(60)]) == pytest.approx(30_000)
    assert growth_per_minute([(0.0, 5)]) == 0.0


def test_growth_of_peaks_does_not_see_what_is_lower_for_a_while() -> None:
    flat_with_a_hole = [(float(s), 300 if 130 <= s < 250 else 450) for s in range(300)]
    assert peak_growth_per_minute(flat_with_a_hole) == 0.0
    assert growth_per_minute(flat_with_a_hole) > 0
    assert peak_growth_per_minute([(float(s), 500 * s) for s in range(60)]) == pytest.approx(30_000)
    assert peak_growth_per_minute([(0.0, 5)]) == 0.0
