"""Faults, each on a real server: killed, hung and stopped engines, draining, lost clients, broken caches, no memory."""

import asyncio
import os
import re
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from onepass import AsyncClient, Client, Scorer
from onepass.api import ScoreRequest
from server.running import Server, serving, wait_until

SMALL = {"query": [5, 6, 7], "items": [[8, 9], [10], []], "label_token_ids": [11, 12]}
QUICK = ("--dtype", "float32", "--silence-seconds", "6", "--max-batch-tokens", "64")


def large(items: int, mode: str = "extend") -> dict[str, Any]:
    ids = np.random.default_rng(1).integers(3, 100, (items, 2)).tolist()
    return {"query": [5, 6, 7], "items": ids, "label_token_ids": [11, 12], "mode": mode}


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path]) -> str:
    return str(checkpoint("qwen3"))


@pytest.fixture(scope="module")
def server(model: str) -> Iterator[Server]:
    with serving(model, *QUICK) as server:
        yield server


@pytest.fixture(scope="module")
def right(model: str) -> list[list[float]]:
    with Scorer.load(model, dtype="float32") as scorer:
        return scorer.score(SMALL["query"], SMALL["items"], label_token_ids=SMALL["label_token_ids"]).scores  # type: ignore[arg-type]


def assert_serves(server: Server, right: list[list[float]]) -> None:
    answer = server.score(SMALL)
    assert answer.status_code == 200, answer.text
    assert np.allclose(answer.json()["scores"], right, atol=1e-5)


def test_the_front_process_has_no_jax(server: Server, right: list[list[float]]) -> None:
    assert_serves(server, right)
    assert "jaxlib" not in Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "jaxlib" in Path(f"/proc/{server.engine_pid}/maps").read_text()


def test_200_mixed_requests_at_once_equal_the_librarys(server: Server, model: str) -> None:
    random = np.random.default_rng(2)
    requests = []
    for n in range(200):
        lengths = random.integers(0, 9, random.integers(1, 8))
        if n % 3:
            query: Any = random.integers(3, 100, random.integers(1, 40)).tolist()
            items: Any = [random.integers(3, 100, length).tolist() for length in lengths]
        else:
            query, items = f"question number {n} about", [f" thing {length} of {n}" for length in lengths]
        labels = [[7, 8, 9][: 1 + i % 3] for i in range(len(items))] if n % 5 == 0 else [7, 8]
        mode = ("auto", "extend", "packed", "chunked")[n % 4]
        requests.append(
            ScoreRequest(query=query, items=items, label_token_ids=labels, mode=mode, apply_softmax=n % 7 == 0)  # type: ignore[arg-type]
        )
    with Scorer.load(model, dtype="float32", max_batch_tokens=64) as scorer:
        wanted = scorer.score_many(requests)

    async def ask() -> list[Any]:
        async with AsyncClient(server.url) as client:
            return await client.score_many(requests)

    for got, want in zip(asyncio.run(ask()), wanted, strict=True):
        assert len(got.scores) == len(want.scores)
        assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(got.scores, want.scores, strict=True))
        assert got.usage.prompt_tokens == want.usage.prompt_tokens


def test_a_client_that_leaves_stops_costing(server: Server, right: list[list[float]]) -> None:
    import json

    body = json.dumps(large(20_000)).encode()
    head = (
        f"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    host, port = re.findall(r"//(.*):(\d+)", server.url)[0]
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + body)
        wait_until(lambda: server.metric("onepass_queue_requests") == 1)
    wait_until(lambda: server.metric("onepass_queue_requests") == 0, 10)
    assert_serves(server, right)
    time.sleep(1.2)  # the engine tells its counts once a second
    before = server.metric("onepass_engine_rows_total")
    time.sleep(1.2)
    assert server.metric("onepass_engine_rows_total") == before, "nobody waits, so nothing runs"


def test_a_deadline_is_kept(server: Server) -> None:
    began = time.monotonic()
    answer = server.score(large(50_000), **{"X-Request-Timeout-Ms": "300"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert time.monotonic() - began < 30


def test_a_killed_engine_under_load_answers_503_at_once_and_comes_back(
    server: Server, right: list[list[float]]
) -> None:
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(server.score, large(20_000)) for _ in range(8)]
        wait_until(lambda: server.metric("onepass_queue_requests") == 8)
        os.kill(server.engine_pid, signal.SIGKILL)
        killed = time.monotonic()
        answers = [one.result(30) for one in waiting]
        lost = [answer for answer in answers if answer.status_code != 200]
        assert len(lost) >= 4, "on a busy machine the first may be answered before the kill"
        for answer in lost:
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")
            assert int(answer.headers["retry-after"]) >= 1
        assert time.monotonic() - killed < 20, "not after the minute that the work would take"
    health = httpx2.get(f"{server.url}/health")
    assert health.status_code == 503
    assert "signal 9" in health.json()["reason"] or health.json()["state"] in ("starting", "loading")
    with Client(server.url) as client:  # its retries respect Retry-After
        again = client.score(**SMALL)
    assert np.allclose(again.scores, right, atol=1e-5)
    assert server.metric("onepass_restarts_total") == 1
    assert server.metric("onepass_engine_compilations_total") == 0, "all programs of the new process came from disk"
    assert again.timings.compilations == 0


def test_a_stopped_engine_is_replaced(server: Server, right: list[list[float]]) -> None:
    os.kill(server.engine_pid, signal.SIGSTOP)
    answer = server.score(SMALL, seconds=30)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")
    wait_until(lambda: server.health() == 200, 90)
    assert_serves(server, right)


def settled_size(pid: int) -> int:
    """Bytes of a process's address space, when they have been the same for a second: what is compiled beside the first
    request takes some, and gives them back to whoever comes next."""
    sizes = [0]
    while len(sizes) < 5 or len(set(sizes[-5:])) > 1:
        time.sleep(0.25)
        sizes.append(1024 * int(re.findall(r"VmSize:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]))
    return sizes[-1]


def test_a_request_of_many_steps_needs_no_more_device_memory_than_one(model: str) -> None:
    """The limit is put on the running engine: whatever comes, a step takes what it took before the first request."""
    with serving(model, *QUICK) as server:
        assert server.score(SMALL).status_code == 200
        pid = server.engine_pid
        resource.prlimit(pid, resource.RLIMIT_AS, (settled_size(pid) + (300 << 20), resource.RLIM_INFINITY))
        answer = server.score(large(60_000, "packed"), 300)
        assert answer.status_code == 200, server.text
        assert len(answer.json()["scores"]) == 60_000
        assert server.engine_pid == pid
        resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert server.score(SMALL).status_code == 200


@pytest.mark.parametrize("damage", ["full disk", "garbage"])
def test_damaged_programs_cost_time_and_nothing_else(model: str, tmp_path: Path, damage: str, right: Any) -> None:
    options = (*QUICK, "--programs-dir", str(tmp_path))
    before: tuple[str, ...] = ()
    if damage == "full disk":
        before = ("bash", "-c", 'ulimit -f 4; exec "$0" "$@"')  # a file may have 4 KiB, then writing fails
    else:
        with serving(model, *options) as server:
            assert_serves(server, right)
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert files
        for path in files:
            path.write_bytes(b"not a program")
    with serving(model, *options, before=before) as server:
        assert_serves(server, right)
        assert server.health() == 200


def test_sigterm_finishes_what_has_begun_and_refuses_what_comes(model: str) -> None:
    with serving(model, *QUICK) as server, ThreadPoolExecutor(6) as pool:
        begun = [pool.submit(server.score, large(8_000)) for _ in range(5)]

        def all_have_begun() -> bool:
            """The first may be answered before the last has come."""
            waiting = server.metric("onepass_queue_requests")
            return waiting > 0 and waiting + sum(one.done() for one in begun) == 5

        wait_until(all_have_begun)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.health() == 503, 10)
        refused = server.score(SMALL)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert [len(one.result(120).json()["scores"]) for one in begun] == [8_000] * 5, "nothing is lost"
        assert server.process.wait(30) == 0
        assert "Traceback" not in server.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no/such/model", "--offline"], "no/such/model"),
        (["--max-batch-tokens", "3"], "max_batch_tokens must be at least 16"),
        (["--api-keys", "/nonexistent"], "--api-keys must be a readable file"),
        (["--tls-key", "k.pem"], "belong together"),
        (["--host", "203.0.113.1"], "cannot listen on 203.0.113.1"),
    ],
)
def test_what_cannot_be_served_is_said_and_ends_with_status_2(model: str, arguments: list[str], words: str) -> None:
    named = [] if arguments[0] == "no/such/model" else [model]
    server = Server(*named, *arguments) if named else Server(*arguments)
    assert server.process.wait(90) == 2
    server.stop()
    assert words in server.text
    assert "Traceback" not in server.text


def test_a_port_that_is_taken_is_said(server: Server, model: str) -> None:
    port = server.url.rpartition(":")[2]
    other = Server(model, "--port", port)
    assert other.process.wait(60) == 2
    other.stop()
    assert f"cannot listen on 127.0.0.1:{port}" in other.text
