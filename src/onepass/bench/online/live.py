"""The latency of `GET /live` while something else happens: what every other caller of the server feels.

A server that parses or tokenises while it holds the interpreter's lock shows here as a sample of seconds.
"""

import asyncio
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field

from onepass.bench.online.connection import Address

REQUEST = b"GET /live HTTP/1.1\r\nHost: live\r\n\r\n"


@dataclass
class LiveSamples:
    """Seconds from when each sample was due. Those that a frozen server kept from being sent count as well."""

    every_seconds: float = 0.01
    latencies: list[float] = field(default_factory=list)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, address: Address) -> None:
        """Until `stop`."""
        reader, writer = await asyncio.open_connection(address.host, address.port)
        due = time.perf_counter()
        try:
            while not self._stop.is_set():
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                while due <= time.perf_counter():
                    await _ask(reader, writer)
                    self.latencies.append(time.perf_counter() - due)
                    due += self.every_seconds
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def stop(self) -> None:
        self._stop.set()

    def milliseconds(self) -> dict[str, float]:
        ordered = sorted(self.latencies)

        def at(part: float) -> float:
            return round(1e3 * ordered[min(len(ordered) - 1, int(part * len(ordered)))], 2) if ordered else 0.0

        return {"samples": len(ordered), "p50": at(0.5), "p99": at(0.99), "max": at(1.0)}


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(REQUEST)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    assert head.startswith(b"HTTP/1.1 200"), f"/live must be 200; got {head!r}"
    assert length is not None, f"/live must have a Content-Length; got {head!r}"
    await reader.readexactly(int(length[1]))
