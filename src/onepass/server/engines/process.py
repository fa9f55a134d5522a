"""The front's line to one engine process: starts it, asks it, notices when it dies or hangs, and starts it again.

Whoever was waiting when it died is told at once. Which requests go to which engine, and how many may wait: `client`.
"""

import asyncio
import itertools
import logging
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from onepass.errors import EngineUnavailable
from onepass.ipc import Frame, read_frame, write_frame
from onepass.server.engines.details import served_from
from onepass.server.engines.log_relay import relay_lines
from onepass.server.engines.protocol import error_of
from onepass.server.engines.service import Health, Served

LAST_LINES_SECONDS = 1.0

log = logging.getLogger("onepass.server.supervisor")


@dataclass(frozen=True)
class Timeouts:
    """Seconds. `silence` is how long an engine may leave pings unanswered; a step may take `step` on the device. Until
    its `first_word` a process reads Python and JAX from the disk, and cannot answer: a busy machine takes long."""

    ping: float = 1.0
    first_word: float = 120.0
    silence: float = 10.0
    step: float = 300.0
    first_pause: float = 0.2  # before a restart; doubled each time an engine dies before it is ready
    longest_pause: float = 30.0
    farewell: float = 5.0  # between closing the socket and killing the process


@dataclass(eq=False)
class _Call:
    future: "asyncio.Future[Frame]"
    on_part: Callable[[Frame], None] | None


@dataclass
class ProcessState:
    """How an engine stands, for /health."""

    state: str = "starting"
    reason: str = "the engine process is starting"
    progress: dict[str, Any] = field(default_factory=dict)
    restarts: int = 0
    refused: str | None = None  # why these options cannot be served at all


class EngineProcess:
    def __init__(
        self,
        start: dict[str, Any],
        patience: Timeouts,
        on_progress: Callable[[dict[str, Any]], None],
        number: int = 0,
    ) -> None:
        """`number` names the engine in the log."""
        self._number = number
        self._start = Frame("start", fields=start)
        self._patience = patience
        self._on_progress = on_progress
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._heard = 0.0
        self._has_spoken = False
        self._was_ready = False
        self._stopping = False
        self.process: asyncio.subprocess.Process | None = None
        self.served: Served | None = None
        self.standing = ProcessState()
        self.stats: dict[str, float] = {}
        self.changed = asyncio.Event()  # set when `status` changes; whoever waits clears it
        self.lives = 0  # how many processes there have been: handles of an earlier one are void

    @property
    def ready(self) -> bool:
        return self.standing.state == "ready"

    @property
    def calls_out(self) -> int:
        return len(self._calls)

    def health(self) -> Health:
        s = self.standing
        return Health(self.ready, s.state, s.reason, s.progress, s.restarts)

    async def ask(self, frame: Frame, on_part: Callable[[Frame], None] | None = None) -> Frame:
        """The engine's answer. Cancelling the caller cancels the call in the engine."""
        if not self.ready:
            raise EngineUnavailable(f"no engine is ready: {self.standing.reason}", self._expected_wait())
        number = next(self._numbers)
        call = _Call(asyncio.get_running_loop().create_future(), on_part)
        self._calls[number] = call
        try:
            self._send(Frame(frame.kind, number, frame.fields, frame.arrays))
            return await call.future
        except asyncio.CancelledError:
            self._send(Frame("cancel", number))
            raise
        finally:
            self._calls.pop(number, None)

    async def run(self) -> None:
        """Keep an engine alive until `stop`, or until it says that its options cannot be served."""
        pause = self._patience.first_pause
        while not self._stopping:
            self._was_ready = False
            why = await self._one_life()
            if self._stopping or (self.standing.refused is not None and self.lives == 1):
                return
            pause = self._patience.first_pause if self._was_ready else min(2 * pause, self._patience.longest_pause)
            self.standing.restarts += 1
            self._stand("restarting", f"{why}; it is started again in {pause:.1f} s")
            log.error("%s; starting it again", why)
            await asyncio.sleep(pause)

    async def stop(self) -> None:
        """Close the socket, which ends the process; kill it if that does not."""
        self._stopping = True
        self._stand("stopping", "the server is shutting down")
        if self._writer is not None:
            self._writer.close()
        if self.process is not None and self.process.returncode is None:
            try:
                await asyncio.wait_for(self.process.wait(), self._patience.farewell)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()

    async def _one_life(self) -> str:
        """Start a process, listen to it until it ends, and say why it ended."""
        self.lives += 1
        self.standing.refused = None
        self._stand("starting", "the engine process is starting")
        ours, theirs = socket.socketpair()
        try:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "onepass.server.engines.worker", str(theirs.fileno()),
                pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C at the terminal is the front's, also before the engine ignores it
            )  # fmt: skip
        finally:
            theirs.close()
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=1 << 22)
        self._heard, self._has_spoken = time.monotonic(), False
        self._send(self._start)
        watch = asyncio.create_task(self._watch(self.process))
        assert self.process.stderr is not None
        relaying = asyncio.create_task(relay_lines(self.process.stderr, self._number))
        try:
            while True:
                self._take(await read_frame(reader))
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            pass
        finally:
            watch.cancel()
            self._writer.close()
            self.served, self.stats = None, {}
        if self.process.returncode is None:
            try:
                await asyncio.wait_for(self.process.wait(), self._patience.farewell)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
        why = self._epitaph(self.process.returncode)
        self._stand("restarting", why)
        self._fail_calls(why)
        await asyncio.wait([relaying], timeout=LAST_LINES_SECONDS)  # a child of the process may hold the pipe open
        relaying.cancel()
        return why

    def _epitaph(self, status: int | None) -> str:
        if self.standing.refused is not None:
            return self.standing.refused
        if status is not None and status < 0:
            return f"the engine process was ended by signal {-status}"
        return f"the engine process ended with status {status}"

    def _fail_calls(self, why: str) -> None:
        for call in self._calls.values():
            if not call.future.done():
                call.future.set_exception(EngineUnavailable(f"{why} while it had this request", self._expected_wait()))

    def _expected_wait(self) -> float:
        """Seconds for Retry-After: about what a start with programs from disk takes."""
        return 5.0 if self.standing.state in ("restarting", "starting") else 2.0

    def _take(self, frame: Frame) -> None:
        self._heard, self._has_spoken = time.monotonic(), True
        if frame.kind == "pong":
            self.stats = frame.fields
        elif frame.kind == "progress":
            progress = frame.fields
            state = "warming up" if progress["stage"] in ("compile", "warm-up", "self-test") else "loading"
            self.standing.progress = progress
            self._stand(state, f"{progress['stage']}: {progress['done']:,} of {progress['of']:,}")
            self._on_progress(progress)
        elif frame.kind == "ready":
            self.served, self._was_ready = served_from(frame.fields), True
            self.stats = frame.fields.get("stats", {})  # what was compiled counts before the first request
            self.standing.progress = {}
            self._stand("ready", f"{self.served.model} is served")
        elif frame.kind == "refused":
            self.standing.refused = frame.fields["reason"]
            self._stand("failed", frame.fields["reason"])
        elif (call := self._calls.get(frame.call)) is not None and not call.future.done():
            if frame.kind == "part":
                if call.on_part is not None:
                    call.on_part(frame)
            elif frame.kind == "error":
                call.future.set_exception(error_of(frame))
            else:
                call.future.set_result(frame)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Ping; kill an engine that has fallen silent or has been at one step for too long."""
        patience = self._patience
        while True:
            asleep = time.monotonic()
            await asyncio.sleep(patience.ping)
            if time.monotonic() - asleep > 2 * patience.ping + 1:
                self._heard = time.monotonic()  # we were stopped ourselves, and cannot blame the engine
            self._send(Frame("ping"))
            silent = time.monotonic() - self._heard
            if silent > (patience.silence if self._has_spoken else patience.first_word):
                log.error("the engine process has said nothing for %.0f s: killing it", silent)
                process.kill()
                return
            if self.stats.get("step_seconds", 0.0) > patience.step:
                log.error("the engine has been at one step for more than %.0f s: killing it", patience.step)
                process.kill()
                return

    def _send(self, frame: Frame) -> None:
        if self._writer is not None and not self._writer.is_closing():
            write_frame(self._writer, frame)

    def _stand(self, state: str, reason: str) -> None:
        self.standing.state, self.standing.reason = state, reason
        self.changed.set()
