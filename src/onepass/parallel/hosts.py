"""Several processes, on one machine or many, that share one model: joining them, and lines between them.

JAX's own service makes their devices one set. Beside it the first process has a line (TCP) to each of the others, for a
collective that waits for the next request would time out, and a line that breaks says at once that a process has gone.
What is said on the lines is `engine.multihost.leader` and `engine.multihost.follower`.
"""

import secrets
import socket
import time
from dataclasses import dataclass

import jax
import numpy as np
from jax.experimental import multihost_utils

from onepass.errors import ConfigError, OnepassError
from onepass.ipc import Frame, FrameSocket

JOIN_SECONDS = 300
TOKEN_BYTES = 16


@dataclass(frozen=True)
class Hosts:
    """`coordinator` is HOST:PORT of process 0, as the others reach it."""

    coordinator: str
    processes: int
    process: int

    def __post_init__(self) -> None:
        host, colon, port = self.coordinator.rpartition(":")
        if not colon or not host or not port.isdecimal():
            raise ConfigError(f"a coordinator is HOST:PORT; got {self.coordinator!r}")
        if self.processes < 2:
            raise ConfigError(f"several hosts are at least 2 processes; got {self.processes}")
        if not 0 <= self.process < self.processes:
            raise ConfigError(f"a process of {self.processes} is one of 0 to {self.processes - 1}; got {self.process}")

    @property
    def leads(self) -> bool:
        return self.process == 0

    def join(self, seconds: int = JOIN_SECONDS) -> None:
        """Before anything else is done with JAX. Waits for the other processes."""
        # Without it JAX ends this process when another dies; we tell our callers instead.
        jax.config.update("jax_enable_recoverability", True)
        try:
            jax.distributed.initialize(
                self.coordinator,
                self.processes,
                self.process,
                initialization_timeout=seconds,
                shutdown_timeout_seconds=10,
            )
        except RuntimeError as error:
            raise ConfigError(f"process {self.process} could not join {self.coordinator}: {error}") from error

    def leave(self) -> None:
        """Of the others, before process 0: JAX ends a process with a core dump when its service has gone first."""
        jax.distributed.shutdown()

    def lines(self, fingerprint: dict[str, object], seconds: float = JOIN_SECONDS) -> "list[FrameSocket]":
        """All processes call this with what they are about to run, which must be the same. Process 0 gets a line to
        each of the others, in order; the others one to it."""
        return self._lead(fingerprint, seconds) if self.leads else [self._follow(fingerprint, seconds)]

    def _lead(self, fingerprint: dict[str, object], seconds: float) -> list[FrameSocket]:
        token = secrets.token_bytes(TOKEN_BYTES)
        with socket.create_server(("", 0)) as listening:
            listening.settimeout(seconds)
            _broadcast(listening.getsockname()[1], token)
            found: dict[int, FrameSocket] = {}
            while len(found) < self.processes - 1:
                try:
                    connection, address = listening.accept()
                except TimeoutError:
                    missing = sorted(set(range(1, self.processes)) - found.keys())
                    raise OnepassError(f"processes {missing} did not call within {seconds:g} s") from None
                line, hello = _opened(connection, seconds)
                if hello is None or hello.fields.get("token") != token.hex():
                    line.close()  # somebody else: not of this run
                    continue
                if hello.fields["fingerprint"] != fingerprint:
                    reason = f"process {hello.call} runs {hello.fields['fingerprint']}, process 0 runs {fingerprint}"
                    line.write(Frame("refused", fields={"reason": reason}))
                    raise ConfigError(f"all processes must run the same; {reason} ({address[0]})")
                found[hello.call] = line
        for line in found.values():
            line.write(Frame("welcome"))
        return [found[number] for number in sorted(found)]

    def _follow(self, fingerprint: dict[str, object], seconds: float) -> FrameSocket:
        port, token = _broadcast(0, bytes(TOKEN_BYTES))
        host = self.coordinator.rpartition(":")[0].strip("[]")
        connection = _connected(host, port, seconds)
        line = FrameSocket(connection)
        line.write(Frame("hello", self.process, {"token": token.hex(), "fingerprint": fingerprint}))
        answer = line.read()
        if answer is None or answer.kind != "welcome":
            reason = answer.fields["reason"] if answer else "process 0 has gone"
            raise ConfigError(f"process {self.process} was not taken: {reason}")
        return line


def _opened(connection: socket.socket, seconds: float) -> tuple[FrameSocket, Frame | None]:
    connection.settimeout(seconds)
    line = FrameSocket(connection)
    try:
        hello = line.read()
    except (OSError, ValueError):
        hello = None
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line, hello


def _connected(host: str, port: int, seconds: float) -> socket.socket:
    end = time.monotonic() + seconds
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=10)
        except OSError as error:
            if time.monotonic() > end:
                raise OnepassError(f"process 0 cannot be reached on {host}:{port}: {error}") from error
            time.sleep(0.2)
            continue
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _broadcast(port: int, token: bytes) -> tuple[int, bytes]:
    """What process 0 gives, in every process."""
    given = np.concatenate([np.array([port], np.int32), np.frombuffer(token, np.uint8).astype(np.int32)])
    found = np.asarray(multihost_utils.broadcast_one_to_all(given))
    return int(found[0]), bytes(found[1:].astype(np.uint8))
