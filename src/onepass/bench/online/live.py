"""The latency of `GET /live` while something else happens: what every other caller of the server feels.

A server that parses or tokenises while it holds the interpreter's lock shows here as a sample of seconds. Samples are
taken by a process of their own (`live_samples`): in the process of many clients they would tell how busy those are.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
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


@asynccontextmanager
async def live_samples(address: Address, every_seconds: float) -> AsyncIterator[LiveSamples]:
    """Taken by another process until the block is left; then the latencies are there."""
    command = (sys.executable, "-m", __name__, str(address), str(every_seconds))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    await process.stdout.readline()  # it has begun
    samples = LiveSamples(every_seconds)
    try:
        yield samples
    finally:
        out, _ = await process.communicate()  # closes its stdin
        samples.latencies = json.loads(out)


async def _main(address: Address, every_seconds: float) -> None:
    """Sample until stdin ends."""
    samples = LiveSamples(every_seconds)
    ended = asyncio.to_thread(sys.stdin.read)
    print("sampling", flush=True)
    sampling = asyncio.create_task(samples.run(address))
    await ended
    samples.stop()
    await sampling
    print(json.dumps([round(seconds, 6) for seconds in samples.latencies]))


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(REQUEST)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    assert head.startswith(b"HTTP/1.1 200"), f"/live must be 200; got {head!r}"
    assert length is not None, f"/live must have a Content-Length; got {head!r}"
    await reader.readexactly(int(length[1]))


if __name__ == "__main__":
    asyncio.run(_main(Address.parse(sys.argv[1]), float(sys.argv[2])))
