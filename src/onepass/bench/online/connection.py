"""HTTP/1.1 over asyncio streams: just enough to send JSON and read answers, so that the driver is not what is measured.

Connections are kept and used again. Nothing is retried: what the network does to a request is told as it happened.
"""

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import orjson

from onepass.errors import ConfigError

IDLE_SECONDS = 30.0  # a kept connection that was idle for longer may have been closed by the server
PORTS = {"http": 80, "https": 443}


class TransportError(Exception):
    """No whole answer came: refused, closed early, timed out, or not HTTP."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        try:
            return orjson.loads(self.body)
        except ValueError as error:
            raise TransportError(f"the answer of status {self.status} must be JSON; {error}") from error


@dataclass(frozen=True)
class Address:
    """A server's URL taken apart."""

    scheme: str
    host: str
    port: int
    path: str  # before every path of ours, without a slash at its end

    @classmethod
    def parse(cls, url: str) -> "Address":
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"--url must be http://HOST:PORT or https://HOST:PORT; got {url!r} ({error})") from error
        if parts.scheme not in PORTS or not parts.hostname or parts.username or parts.query or parts.fragment:
            raise ConfigError(f"--url must be http://HOST:PORT or https://HOST:PORT; got {url!r}")
        return cls(parts.scheme, parts.hostname, port or PORTS[parts.scheme], parts.path.rstrip("/"))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


@dataclass
class Connections:
    """As many as are asked for at a time; `opened` counts them."""

    address: Address
    api_key: str | None = None
    timeout: float = 600.0
    opened: int = 0
    _idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, float]] = field(default_factory=list)

    async def ask(self, method: str, path: str, body: bytes = b"") -> Answer:
        try:
            async with asyncio.timeout(self.timeout):
                return await self._ask(method, path, body)
        except TimeoutError as error:
            raise TransportError(f"no answer within {self.timeout:g} s") from error
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            raise TransportError(f"{type(error).__name__}: {error}") from error

    async def _ask(self, method: str, path: str, body: bytes) -> Answer:
        reader, writer = await self._take()
        kept = False
        try:
            writer.write(self._head(method, path, len(body)))
            writer.write(body)
            await writer.drain()
            answer = await _read(reader)
            kept = answer.headers.get("connection", "").lower() != "close"
            return answer
        finally:
            if kept:
                self._idle.append((reader, writer, time.monotonic()))
            else:
                writer.close()

    async def _take(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer, since = self._idle.pop()
            if time.monotonic() - since < IDLE_SECONDS and not reader.at_eof():
                return reader, writer
            writer.close()
        self.opened += 1
        context = ssl.create_default_context() if self.address.scheme == "https" else None
        return await asyncio.open_connection(self.address.host, self.address.port, ssl=context)

    def _head(self, method: str, path: str, size: int) -> bytes:
        lines = [f"{method} {self.address.path}{path} HTTP/1.1", f"Host: {self.address.host}:{self.address.port}"]
        lines += ["Content-Type: application/json", f"Content-Length: {size}"] if size else []
        lines += [f"Authorization: Bearer {self.api_key}"] if self.api_key else []
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    async def close(self) -> None:
        for _, writer, _ in self._idle:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer, _ in self._idle), return_exceptions=True)
        self._idle.clear()


async def _read(reader: asyncio.StreamReader) -> Answer:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    version, status, *_ = first.split(" ", 2)
    if not version.startswith("HTTP/1."):
        raise ValueError(f"the answer must be of HTTP/1.1; it begins with {first[:40]!r}")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return Answer(int(status), headers, await _chunks(reader))
    return Answer(int(status), headers, await reader.readexactly(int(headers.get("content-length", 0))))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    """A proxy may send an answer in pieces."""
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers
    return b"".join(parts)
