"""The loops and the connections under them, against small servers on real sockets whose every answer is known."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress

import numpy as np
import orjson
import pytest

from onepass.bench.online.connection import Address, Connections, TransportError
from onepass.bench.online.loops import Source, arrivals, closed_loop, open_loop
from onepass.bench.online.requests import Labels, MixPart, Requests
from onepass.bench.online.target import Target
from onepass.bench.online.window import Window
from onepass.bench.workloads import Shape
from onepass.errors import ConfigError

REQUESTS = Requests((MixPart("tiny", Shape(4, 2, 3, 3)),), 600, labels=Labels((5,)))
TIMINGS = dict.fromkeys(("queue_ms", "encode_ms", "device_ms", "total_ms"), 1.0)
USAGE = {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 0}}
SCORED = {"scores": [[0.25], [0.5]], "mode": "extend", "timings": TIMINGS, "usage": USAGE}
Answerer = Callable[[int], Awaitable[bytes]]  # the number of a request → everything that is sent back


def http(body: object, status: int = 200, *headers: str) -> bytes:
    content = orjson.dumps(body)
    head = [f"HTTP/1.1 {status} X", f"content-length: {len(content)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + content


async def at_once(number: int) -> bytes:
    return http(SCORED)


def against[T](answer: Answerer, use: Callable[[Target], Awaitable[T]], timeout: float = 5.0) -> T:
    """Run `use` against a server that answers request n with `answer(n)`; b"" closes the connection."""

    async def run() -> T:
        asked, serving = 0, set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            serving.add(asyncio.current_task())
            with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    size = next((int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.startswith(b"Content-L")), 0)
                    await reader.readexactly(size)
                    asked += 1
                    sent = await answer(asked - 1)
                    if not sent:
                        break
                    writer.write(sent)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        target = Target(Connections(Address("http", "127.0.0.1", port, ""), timeout=timeout), {})
        try:
            return await use(target)
        finally:
            await target.close()
            server.close()
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving)
            await asyncio.sleep(0.01)  # until the sockets are closed

    return asyncio.run(run())


def closed(answer: Answerer, clients: int = 2, seconds: float = 0.3, timeout: float = 5.0) -> Window:
    return against(answer, lambda target: closed_loop(target, Source(REQUESTS), clients, seconds), timeout)


def test_clients_send_until_the_time_is_up_and_connections_are_kept() -> None:
    async def use(target: Target) -> tuple[Window, int]:
        window = await closed_loop(target, Source(REQUESTS), 3, 0.3)
        return window, target.connections.opened

    window, opened = against(at_once, use)
    assert window.sent == len(window.scored) == window.statuses[200] > 3
    assert sorted(one.number for one in window.scored) == list(range(window.sent))
    assert opened == 3
    assert 0.3 <= window.seconds < 15
    assert 0 < window.client_cpu <= 1.2
    assert window.num_errors == 0


def test_latency_counts_from_when_a_request_was_due() -> None:
    """Everything stands still for half a second, this driver too: requests that were due then leave late, and the time
    until they left is counted."""

    async def stands_still(number: int) -> bytes:
        if number == 5:
            time.sleep(0.5)
        return http(SCORED)

    due = [n / 100 for n in range(50)]
    window = against(stands_still, lambda target: open_loop(target, Source(REQUESTS), due, 100.0))
    assert (window.sent, len(window.scored), len(window.lags)) == (50, 50, 50)
    late = sorted(window.latencies)[-40:]
    assert np.mean(late) > 0.2, "the whole half second shows, not one slow answer"
    assert max(window.lags) > 0.4


def test_arrivals_are_poisson_seeded_and_at_the_rate() -> None:
    times = arrivals(50.0, 100.0, seed=0)
    assert times == arrivals(50.0, 100.0, seed=0) != arrivals(50.0, 100.0, seed=1)
    assert 4700 < len(times) < 5300
    assert times == sorted(times)
    assert times[-1] < 100.0
    gaps = np.diff(times)
    assert np.std(gaps) == pytest.approx(np.mean(gaps), rel=0.1)  # as exponential ones have it
    assert arrivals(0.001, 1.0, seed=0)


def test_refused_requests_are_counted_and_their_clients_wait_as_told() -> None:
    async def busy(number: int) -> bytes:
        return http({"message": "full"}, 429, "retry-after: 0.1") if number % 2 else http(SCORED)

    window = closed(busy, clients=1, seconds=0.55)
    assert window.statuses[429] == len(window.retry_after) <= 7
    assert set(window.retry_after) == {0.1}
    assert window.num_errors == 0


@pytest.mark.parametrize(
    ("sent", "status", "message"),
    [
        (http({"message": "the engine died"}, 503), 503, "status 503: the engine died"),
        (http({**SCORED, "scores": [[0.5]]}), 200, "1 rows of scores for 2 items"),
        (http({**SCORED, "scores": [[0.5], [None]]}), 200, "a score is no probability"),
        (http({**SCORED, "scores": [[0.5], [1.5]]}), 200, "a score is no probability"),
        (http({"fine": True}), 200, "it has no scores"),
        (b"", 0, "transport: IncompleteReadError"),
        (b"SSH-2.0-server\r\n\r\n", 0, "transport: ValueError"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{[}", 0, "transport: the answer of status 200 must be JSON"),
    ],
)
def test_answers_that_are_no_scores_are_errors(sent: bytes, status: int, message: str) -> None:
    async def always(number: int) -> bytes:
        return sent

    window = closed(always, clients=1, seconds=0.15)
    assert not window.scored
    assert window.num_errors == window.sent <= 4, "a client does not hammer a broken server"
    assert window.statuses[status] > 0
    assert message in window.errors[0]


def test_an_answer_that_does_not_come_is_an_error_in_time() -> None:
    async def never(number: int) -> bytes:
        await asyncio.sleep(30)
        return b""

    window = closed(never, clients=1, seconds=0.1, timeout=0.2)
    assert window.errors == ["transport: no answer within 0.2 s"]


def test_answers_in_pieces_and_closed_connections_are_read() -> None:
    content = orjson.dumps(SCORED)
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (content[:7], content[7:]))

    async def in_pieces(number: int) -> bytes:
        if number % 2:
            return http(SCORED, 200, "connection: close")
        return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n"

    window = closed(in_pieces, clients=1, seconds=0.1)
    assert window.num_errors == 0
    assert len(window.scored) > 3


def test_scores_are_kept_evenly_from_all_answers() -> None:
    places: list[int] = []
    for seed in range(200):
        window = Window(keep=2)
        window._random.seed(seed)
        for number in range(20):
            window.scored.append(None)  # type: ignore[arg-type]
            window.see(number, [[0.5]])
        places += [number for number, _ in window.kept]
    assert len(places) == 400
    counts = np.bincount(places, minlength=20)
    assert counts.min() > 5
    assert counts.max() < 45


def test_requests_are_prepared_and_taken_in_order() -> None:
    source = Source(REQUESTS)
    source.prepare(3)
    assert [source.take().number for _ in range(5)] == [0, 1, 2, 3, 4]
    assert source.made_late == 2


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", "http://host:port", "http://u:p@host"])
def test_a_url_must_name_a_server(url: str) -> None:
    with pytest.raises(ConfigError, match="--url must be http://HOST:PORT"):
        Address.parse(url)
    assert str(Address.parse("http://host:81/base/")) == "http://host:81/base"


def test_nobody_there_is_a_transport_error() -> None:
    async def use(target: Target) -> None:
        target.connections.address = Address("http", "127.0.0.1", 1, "")
        with pytest.raises(TransportError, match="ConnectionRefusedError"):
            await target.score(b"{}")

    against(at_once, use)
