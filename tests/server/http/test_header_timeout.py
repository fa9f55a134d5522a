"""Heads in time: a connection that does not finish its request's head is closed, others are served."""

import asyncio
from typing import Any

import pytest
import uvicorn

from onepass.server.http.header_timeout import TimedHeads

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"


class Hasty(TimedHeads):
    head_seconds = 0.3


async def app(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(0.6)  # an answer may take longer than a head
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def talk(pieces: list[bytes], pause: float) -> list[bytes]:
    """Send the pieces with pauses; the answer's head, or nothing if the server closed."""
    server = uvicorn.Server(uvicorn.Config(app, http=Hasty, port=0, lifespan="off", log_config=None))
    config = server.config
    config.load()
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers: list[bytes] = []
    try:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(pause)
        async with asyncio.timeout(5):
            answers.append(await reader.readuntil(b"\r\n\r\n"))
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()
        server.should_exit = True
        await serving
    return answers


@pytest.mark.parametrize(
    "pieces",
    [[b""], [HEAD], [bytes([one]) for one in HEAD]],
    ids=["nothing", "half", "drop by drop"],
)
def test_an_unfinished_head_is_closed(pieces: list[bytes]) -> None:
    assert asyncio.run(talk(pieces, 0.05)) == []


def test_a_whole_head_is_answered_however_long_the_answer_takes() -> None:
    (answer,) = asyncio.run(talk([HEAD, b"\r\n"], 0.05))
    assert answer.startswith(b"HTTP/1.1 204")
