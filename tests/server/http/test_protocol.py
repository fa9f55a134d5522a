"""Bytes on the wire: what the parser refuses is answered like everything else, half-closed clients get their answer."""

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from onepass.bench.online.connection import Address
from onepass.bench.online.hostile import EXPECTED, HostileClients
from onepass.bench.online.live import live_samples
from onepass.server.app import build_app
from onepass.server.http.protocol import HttpProtocol
from server.asking import SCORE, TYPES
from server.in_process import InProcess
from server.running import wait_until

SECONDS = 60.0  # an answer takes milliseconds; a busy machine may take long


@pytest.fixture
def port(service: InProcess) -> Iterator[int]:
    config = uvicorn.Config(
        build_app(service), http=HttpProtocol, port=0, lifespan="off", log_config=None, access_log=False,
        h11_max_incomplete_event_size=1 << 16, server_header=False,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """Every record that reaches the root logger or the server's."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler, loggers = Keep(), [logging.getLogger(), logging.getLogger("onepass.server")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    propagates, loggers[1].propagate = loggers[1].propagate, False
    yield records
    loggers[1].propagate = propagates
    for logger, level in zip(loggers, levels, strict=True):
        logger.removeHandler(handler)
        logger.setLevel(level)


def talk(port: int, sent: bytes, half_close: bool = False) -> bytes:
    """All that the server says until it closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        connection.sendall(sent)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        out = b""
        while piece := connection.recv(1 << 16):
            out += piece
        return out


def request(
    body: bytes, target: str = "/v1/score", extra: str = "", version: str = "1.1", method: str = "POST"
) -> bytes:
    head = f"{method} {target} HTTP/{version}\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return f"{head}{extra}Content-Length: {len(body)}\r\n\r\n".encode() + body


PLAIN = pytest.mark.parametrize("plain", [False, True])


def by_path(sent: bytes, plain: bool) -> bytes:
    """The request as h11 reads it, or as one that passes h11 by."""
    return sent.replace(b"Connection: close\r\n", b"") if plain else sent


def parse(answer: bytes) -> tuple[int, dict[str, str], Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, json.loads(body) if body else None


BODY = json.dumps(SCORE).encode()
GET, POST = b"GET /live HTTP/1.1\r\nHost: x\r\n", b"POST /v1/score HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(32)) * 8
REFUSED = {
    "two lengths": (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, "invalid_content_length"),
    "a length that is none": (POST + b"Content-Length: two\r\n\r\n", 400, "invalid_content_length"),
    "no Host": (b"GET /live HTTP/1.1\r\n\r\n", 400, "invalid_host"),
    "a broken chunk": (CHUNKED + b"zz\r\n{}\r\n", 400, "invalid_chunk"),
    "a broken chunk after a whole body": (CHUNKED + b"%x\r\n%s\r\nzz\r\n" % (len(BODY), BODY), 400, "invalid_chunk"),
    "a head of 1 MB": (GET + b"X-Long: " + b"x" * (1 << 20) + b"\r\n\r\n", 431, "headers_too_large"),
    "a head of 70 kB in one piece": (GET + b"X-Long: " + b"x" * 70_000 + b"\r\n\r\n", 431, "headers_too_large"),
    "a target of 70 kB": (b"GET /live?" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: here\r\n\r\n", 431, "headers_too_large"),
    "a flood of headers": (GET + b"A: b\r\n" * 100_000 + b"\r\n", 431, "headers_too_large"),
    "TLS": (HELLO, 400, "tls_on_plain_port"),
    "garbage": (b"\x00\xff\xfe nonsense \x01\r\n\r\n", 400, "invalid_http"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 30, 505, "unsupported_http_version"),
    "HTTP/9.9": (b"GET /live HTTP/9.9\r\nHost: x\r\n\r\n", 505, "unsupported_http_version"),
    "another transfer encoding": (POST + b"Transfer-Encoding: gzip\r\n\r\n", 501, "unsupported_transfer_encoding"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_parser_refuses_is_answered_and_logged_like_every_error(
    port: int, logged: list[logging.LogRecord], name: str
) -> None:
    sent, status, code = REFUSED[name]
    got, headers, body = parse(talk(port, sent))
    assert (got, body["error"]["code"]) == (status, code)
    assert body["error"]["type"] == body["type"] == TYPES[status]
    assert headers["content-type"] == "application/json"
    assert headers["connection"] == "close"
    wait_until(lambda: bool(logged))
    (record,) = logged
    fields = record.__dict__["fields"]
    assert (fields["status"], fields["code"]) == (status, code)
    assert fields["request_id"] == headers["x-request-id"]


def test_a_pipelined_request_is_answered_before_garbage_is_refused(port: int) -> None:
    answers = talk(port, b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n\x00\x01\r\n\r\n")
    assert answers.startswith(b"HTTP/1.1 200")
    assert b"invalid_http" in answers


@PLAIN
def test_a_client_that_has_closed_its_sending_half_is_answered(port: int, service: InProcess, plain: bool) -> None:
    service.hold = True
    threading.Timer(1.0, lambda: setattr(service, "hold", False)).start()
    answer = talk(port, by_path(request(BODY), plain), half_close=True)
    interim, _, rest = answer.partition(b"\r\n\r\n")
    status, _, body = parse(rest if interim.startswith(b"HTTP/1.1 100") else answer)
    assert status == 200
    assert len(body["scores"]) == len(SCORE["items"])
    assert service.cancelled == 0


@PLAIN
def test_a_client_that_is_gone_still_stops_its_request(port: int, service: InProcess, plain: bool) -> None:
    service.hold = True
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        connection.sendall(by_path(request(BODY), plain))
        wait_until(lambda: service.running == 1)
    wait_until(lambda: service.cancelled == 1)


@PLAIN
def test_half_a_request_and_then_the_end_is_no_request(port: int, service: InProcess, plain: bool) -> None:
    assert talk(port, by_path(request(BODY), plain)[:-10], half_close=True) == b""
    assert not service.callers


def test_an_answer_is_read_by_a_client_that_is_still_sending(port: int) -> None:
    """Closed at once, the kernel would reset the connection for the bytes that nobody read."""
    head = b"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 30000000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        connection.sendall(head + b"x" * 1_000_000)
        time.sleep(0.2)
        connection.sendall(b"x" * 1_000_000)
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
    assert parse(answer)[0] == 415


def test_targets_in_absolute_form(port: int) -> None:
    for target in ("http://some.where:80/v1/score", "HTTPS://x/v1/score/"):
        assert parse(talk(port, request(BODY, target)))[0] == 200
    assert parse(talk(port, request(b"", "http://some.where", method="GET")))[2]["name"] == "onepass"
    assert parse(talk(port, request(BODY, "http://x/nowhere")))[0] == 404


def test_options_of_the_server_itself(port: int) -> None:
    status, headers, _ = parse(talk(port, request(b"", "*", method="OPTIONS")))
    assert status == 204
    assert set(headers["allow"].split(", ")) >= {"GET", "POST", "OPTIONS"}


def test_http_1_0_is_answered(port: int) -> None:
    assert parse(talk(port, request(b"", "/live", version="1.0", method="GET")))[0] == 200
    assert parse(talk(port, request(BODY, version="1.0"), half_close=True))[0] == 200


def test_the_hostile_clients_of_the_soak_are_answered_as_they_must_be_and_live_goes_on(port: int) -> None:
    address = Address.parse(f"http://127.0.0.1:{port}")
    hostile = HostileClients(address, BODY)

    async def run() -> dict[str, float]:
        async with live_samples(address, 0.01) as live:
            await hostile.run(len(EXPECTED), 0.0)  # each once, however quick it is
        return live.milliseconds()

    live = asyncio.run(run())
    assert {kind: sum(seen.values()) for kind, seen in hostile.statuses.items()} == dict.fromkeys(EXPECTED, 1)
    assert hostile.unexpected() == 0, hostile.statuses
    assert live["samples"] > 0
    hostile.statuses["not HTTP"]["500"] += 1
    assert hostile.unexpected() == 1


def test_requests_in_pieces_and_in_one_piece_are_answered_in_order(port: int) -> None:
    """Whether or not h11 reads them: the second has a header that only h11 takes."""
    body = json.dumps(SCORE).encode()

    def request(number: int, more: bytes = b"") -> bytes:
        head = f"POST /v1/score HTTP/1.1\r\nHost: a\r\nX-Request-Id: r{number}\r\nContent-Length: {len(body)}\r\n"
        return head.encode() + more + b"\r\n" + body

    stream = request(1) + request(2, b"X-Tab:\ta\r\n") + request(3) + request(4)
    for size in (len(stream), 97, len(request(1)) + 40):
        with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as client:
            for start in range(0, len(stream), size):
                client.sendall(stream[start : start + size])
                time.sleep(0.002)
            got = b""
            while got.count(b"x-request-id: r") < 4 or not got.endswith(b"}"):
                piece = client.recv(1 << 16)
                assert piece, got
                got += piece
        assert [got.index(b"x-request-id: r%d" % n) for n in (1, 2, 3, 4)] == sorted(
            got.index(b"x-request-id: r%d" % n) for n in (1, 2, 3, 4)
        )
        assert got.count(b"HTTP/1.1 200 OK\r\n") == 4
