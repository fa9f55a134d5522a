"""A server of our own on the loopback, in processes of its own, for benchmarks that start what they measure.

Started as a user would start it (`onepass serve`), on a free port, and always stopped. Memory is read from /proc.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import numpy as np

from onepass.errors import EngineUnavailable

FAREWELL_SECONDS = 90.0


@dataclass(frozen=True)
class Memory:
    """Resident bytes of the process that speaks HTTP and of its engines together."""

    front: int
    engine: int


@dataclass(frozen=True)
class OwnServer:
    url: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def engine_pids(self) -> list[int]:
        """The front's children."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def memory(self) -> Memory:
        return Memory(resident_bytes(self.process.pid), sum(map(resident_bytes, self.engine_pids())))


@contextmanager
def own_server(
    model: str,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    ready_seconds: float = 600.0,
) -> Iterator[OwnServer]:
    """Ready when entered; stopped, by force if need be, when left."""
    command = [sys.executable, "-m", "onepass.cli.main", "serve", model, "--port", "0", *options]
    with tempfile.TemporaryDirectory(prefix="onepass-serve-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stderr=out, stdout=out, env=None if environment is None else {**environment}
            )
        try:
            yield OwnServer(_ready_url(process, log, time.monotonic() + ready_seconds), process, log)
        finally:
            _stop(process)


def _ready_url(process: "subprocess.Popen[bytes]", log: Path, until: float) -> str:
    while time.monotonic() < until and process.poll() is None:
        match = re.search(r" for (https?://[^\s\"]+)", log.read_text(encoding="utf-8", errors="replace"))
        if match and _healthy(match.group(1)):
            return match.group(1)
        time.sleep(0.2)
    tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise EngineUnavailable(f"`onepass serve` did not become ready; it said: {tail}", None)


def _healthy(url: str) -> bool:
    try:
        with urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (HTTPError, URLError, OSError):
        return False


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(FAREWELL_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):  # it has just ended
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def growth_per_minute(samples: Sequence[tuple[float, int]]) -> float:
    """Bytes a minute over the second half of (seconds, bytes): the slope of the straight line nearest to them."""
    later = samples[len(samples) // 2 :]
    if len(later) < 2:
        return 0.0
    return 60 * float(np.polyfit([at for at, _ in later], [size for _, size in later], 1)[0])


def peak_growth_per_minute(samples: Sequence[tuple[float, int]]) -> float:
    """Bytes a minute from the highest of the second third of (seconds, bytes) to the highest of the last: for what may
    be lower for a while, but never higher than what is held."""
    third = len(samples) // 3
    if third < 2:
        return 0.0
    middle, last = samples[third : 2 * third], samples[2 * third : 3 * third]
    return 60 * (max(size for _, size in last) - max(size for _, size in middle)) / (last[0][0] - middle[0][0])
