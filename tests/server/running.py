"""A real `onepass serve` in a process of its own, on a free port of the loopback, stopped when the test is over."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

# Servers of all tests share what is compiled; the user's own cache is left alone.
PROGRAMS = Path(tempfile.gettempdir()) / f"onepass-test-programs-{os.getuid()}"


class Server:
    def __init__(self, model: str, *options: str, before: tuple[str, ...] = ()) -> None:
        programs = () if "--programs-dir" in options else ("--programs-dir", str(PROGRAMS))
        served = ("serve", model, "--port", "0", *programs, *options)
        command = [*before, sys.executable, "-m", "onepass.cli.main", *served]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}
        )
        self.lines: list[str] = []
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if not self.url and (found := re.search(r"for (http://[^\s\"]+)", line)):
                self.url = found.group(1)

    def wait_until_ready(self, seconds: float = 600) -> None:
        wait_until(lambda: bool(self.url) or self.process.poll() is not None, seconds)
        assert self.process.poll() is None, self.text
        wait_until(lambda: self.health() == 200, seconds)

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def health(self) -> int:
        try:
            return httpx2.get(f"{self.url}/health", timeout=5).status_code
        except httpx2.TransportError:
            return 0

    def score(self, body: dict[str, Any], seconds: float = 120, **headers: str) -> httpx2.Response:
        return httpx2.post(f"{self.url}/v1/score", json=body, timeout=seconds, headers=headers)

    def metric(self, name: str) -> float:
        text = httpx2.get(f"{self.url}/metrics", timeout=10).text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if re.match(rf"{name}(\{{| )", line))

    @property
    def engine_pid(self) -> int:
        """The engine process: the server's only child."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(path.read_text().split()[-1])

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return status


@contextmanager
def serving(model: str, *options: str, before: tuple[str, ...] = ()) -> Iterator[Server]:
    server = Server(model, *options, before=before)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()


def wait_until(true: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
