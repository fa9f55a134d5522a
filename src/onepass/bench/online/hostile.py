"""Clients that do what no client should, for soaks: each kind again and again, and what the server answered to it.

slow body       a byte of the body every half second, and the rest after ten
disconnect      a sound request, the connection closed before its answer
long text       a query of 10 MB
many headers    ten thousand of them
not HTTP        bytes of no protocol
"""

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from onepass.bench.online.connection import Address

PAUSE_SECONDS = 1.0
ANSWER_SECONDS = 120.0
LONG_TEXT_BYTES = 10 << 20
# 429 is right for any of them while the server is full; "none": the client did not wait for an answer.
EXPECTED = {
    "slow body": {"200", "429"},
    "disconnect": {"none"},
    "long text": {"400", "429"},
    "many headers": {"431"},
    "not HTTP": {"400"},
}


@dataclass
class HostileClients:
    """`body` is a sound body of `/v1/score`."""

    address: Address
    body: bytes
    statuses: dict[str, Counter[str]] = field(default_factory=lambda: {kind: Counter() for kind in EXPECTED})

    def unexpected(self) -> int:
        return sum(
            n for kind, seen in self.statuses.items() for status, n in seen.items() if status not in EXPECTED[kind]
        )

    async def run(self, clients: int, seconds: float) -> None:
        """Each client at least once."""
        until = time.monotonic() + seconds
        kinds: dict[str, Callable[[], Coroutine[None, None, str]]] = {
            "slow body": self._slow_body, "disconnect": self._disconnect, "long text": self._long_text,
            "many headers": self._many_headers, "not HTTP": self._not_http,
        }  # fmt: skip

        async def client(number: int) -> None:
            kind = list(kinds)[number % len(kinds)]
            chance = random.Random(number)
            while True:
                try:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        status = await kinds[kind]()
                except (OSError, TimeoutError) as error:
                    status = type(error).__name__
                self.statuses[kind][status] += 1
                if time.monotonic() >= until:
                    return
                await asyncio.sleep(PAUSE_SECONDS * (0.5 + chance.random()))

        await asyncio.gather(*(client(number) for number in range(clients)))

    async def _slow_body(self) -> str:
        """Until all is sent, or an answer comes: a full server refuses a request before its body has come."""
        reader, writer = await self._connect()
        writer.write(_head(len(self.body)))
        answer = asyncio.create_task(_status(reader, writer))
        for at in range(20):
            if answer.done():
                return await answer
            writer.write(self.body[at : at + 1])
            await asyncio.sleep(0.5)
        writer.write(self.body[20:])
        return await answer

    async def _disconnect(self) -> str:
        _, writer = await self._connect()
        writer.write(_head(len(self.body)) + self.body)
        await asyncio.sleep(0.05)
        writer.close()
        return "none"

    async def _long_text(self) -> str:
        members = {"query": "word " * (LONG_TEXT_BYTES // 5), "items": ["b"], "label_token_ids": [1]}
        body = await asyncio.to_thread(lambda: json.dumps(members).encode())
        reader, writer = await self._connect()
        writer.write(_head(len(body)))
        writer.write(body)
        return await _status(reader, writer)

    async def _many_headers(self) -> str:
        reader, writer = await self._connect()
        writer.write(b"POST /v1/score HTTP/1.1\r\nHost: x\r\n" + b"X-Many: y\r\n" * 100_000 + b"\r\n")
        return await _status(reader, writer)

    async def _not_http(self) -> str:
        reader, writer = await self._connect()
        writer.write(b"\x00\x01nonsense\r\n\r\n")
        return await _status(reader, writer)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.address.host, self.address.port)


def _head(length: int) -> bytes:
    fields = f"Host: x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {length}\r\n"
    return f"POST /v1/score HTTP/1.1\r\n{fields}\r\n".encode()


async def _status(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    try:
        status = re.match(rb"HTTP/1\.1 (\d+)", await reader.readline())
        await reader.read()
        return status[1].decode() if status else "no answer"
    finally:
        writer.close()
