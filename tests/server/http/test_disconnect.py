"""Clients that leave, that are slow, or that set a time limit: nothing goes on for someone who does not wait.

On a real uvicorn and real sockets, since that is where connections break.
"""

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import uvicorn
from starlette.testclient import TestClient

from onepass.server.app import build_app
from onepass.server.http.body_limits import Limits
from server.asking import SCORE, check_error
from server.in_process import InProcess

BODY = json.dumps(SCORE).encode()


@pytest.fixture
def port(service: InProcess) -> Iterator[int]:
    """A server on loopback, whose bodies must arrive within half a second."""
    config = uvicorn.Config(build_app(service, Limits(body_seconds=0.5)), http="h11", log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield listening.getsockname()[1]
    service.hold = False
    server.should_exit = True
    thread.join(10)
    listening.close()
    assert not thread.is_alive()


def head(length: int, *more: str) -> bytes:
    lines = ["POST /v1/score HTTP/1.1", "Host: test", f"Content-Length: {length}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.005)


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_a_client_that_disconnects_stops_costing(
    port: int, service: InProcess, caplog: pytest.LogCaptureFixture, accept: str
) -> None:
    service.hold = True
    with caplog.at_level(logging.INFO, "onepass.server"):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head(len(BODY), f"Accept: {accept}") + BODY)
            until(lambda: service.running == 1)
        until(lambda: service.running == 0)
        until(lambda: len(caplog.records) == 1)
    assert service.cancelled == 1
    [record] = caplog.records
    assert record.levelno == logging.INFO, "it is nobody's error"
    assert record.__dict__["fields"]["status"] == 499


def test_a_client_that_leaves_in_the_middle_of_the_lines_stops_costing(
    port: int, service: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    service.hold_late = True
    with caplog.at_level(logging.INFO, "onepass.server"):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head(len(BODY), "Accept: application/x-ndjson") + BODY)
            connection.settimeout(10)
            received = b""
            while b"scoring.part" not in received:
                received += connection.recv(65536)
        until(lambda: len(caplog.records) == 1)
    assert caplog.records[0].__dict__["fields"]["status"] == 499
    assert caplog.records[0].levelno == logging.INFO


def test_a_refused_request_leaves_the_connection_in_order(port: int) -> None:
    """What was not read of its body is not taken for the next request."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        inner = b"GET /live HTTP/1.1\r\nHost: inner\r\n\r\n"
        refused = head(len(inner)).replace(b"/v1/score", b"/v1/nothing") + inner
        connection.sendall(refused + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answers = read_all(connection)
    assert answers.startswith(b"HTTP/1.1 404")
    assert b"alive" not in answers
    assert answers.count(b"HTTP/1.1 ") in (1, 2), "the second is answered, or the connection closed"


def test_a_disconnect_does_not_touch_the_others(port: int, service: InProcess) -> None:
    service.hold = True
    staying = socket.create_connection(("127.0.0.1", port))
    staying.sendall(head(len(BODY), "Connection: close") + BODY)
    until(lambda: service.running == 1)
    with socket.create_connection(("127.0.0.1", port)) as leaving:
        leaving.sendall(head(len(BODY)) + BODY)
        until(lambda: service.running == 2)
    until(lambda: service.running == 1)
    service.hold = False
    assert read_all(staying).startswith(b"HTTP/1.1 200")


def read_all(connection: socket.socket) -> bytes:
    with connection:
        connection.settimeout(10)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_slow_body_is_not_waited_for(port: int) -> None:
    connection = socket.create_connection(("127.0.0.1", port))
    began = time.monotonic()
    connection.sendall(head(len(BODY)) + BODY[:10])
    answer = read_all(connection)  # to its end: the connection is closed
    assert 0.4 < time.monotonic() - began < 9
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"code":"body_timeout"' in answer


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(port: int) -> None:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(head(10**12, "Expect: 100-continue"))
    answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"100 Continue" not in answer


def test_a_client_that_leaves_while_sending_is_no_error(
    port: int, service: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head(len(BODY)) + BODY[:10])
        until(lambda: any(record.name == "onepass.server" for record in caplog.records))
        time.sleep(0.05)
    assert {record.levelno for record in caplog.records} == {logging.INFO}, "uvicorn has nothing to complain of either"
    assert not service.callers


def test_the_clients_own_time_limit_is_kept(client: TestClient, service: InProcess) -> None:
    """Also where the service would not keep it."""
    service.hold = True
    began = time.monotonic()
    answer = client.post("/v1/score", json=SCORE, headers={"X-Request-Timeout-Ms": "80"})
    ended = time.monotonic()
    check_error(answer, 504, "deadline_exceeded")
    assert service.cancelled == 1
    deadline = service.callers[-1].deadline
    assert deadline is not None
    assert began + 0.08 <= deadline <= ended, "it counts from the request's coming, and is waited for"


def test_a_generous_time_limit_changes_nothing(client: TestClient) -> None:
    answer = client.post("/v1/score", json=SCORE, headers={"X-Request-Timeout-Ms": "60000.5"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("headers", "body", "priority"),
    [
        ({}, {}, 0),
        ({"X-Priority": "-7"}, {}, -7),
        ({"X-Priority": "-7"}, {"priority": 3}, 3),
        ({}, {"priority": 999}, 100),
    ],
)
def test_priority_comes_from_the_body_or_the_header(
    client: TestClient, service: InProcess, headers: dict[str, str], body: dict[str, int], priority: int
) -> None:
    client.post("/v1/score", json={**SCORE, **body}, headers={**headers, "X-Request-Id": "me"})
    assert service.callers[-1].priority == priority
    assert service.callers[-1].request_id == "me"
