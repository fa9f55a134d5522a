"""Shots at a server from many connections at once, each judged, and what became of the server's memory meanwhile.

Used by the short test and by the command `python -m server.fuzz`, which starts the server.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from server.fuzz.exchange import LIMIT_SECONDS, Outcome, Shot, shoot
from server.fuzz.verdict import complaint

MOST_KEPT = 50  # complaints told in full
SAMPLE_SECONDS = 0.25
MOST_BYTES = 1500 << 20  # of the front process at its peak: a handful of bodies of 128 MiB, each once or twice


@dataclass
class Tally:
    """What came of all shots."""

    requests: int = 0
    seconds: float = 0.0
    slowest: dict[str, float] = field(default_factory=dict)  # seconds, by status (of the last answer) or what else came
    statuses: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    complaints: Counter[str] = field(default_factory=Counter)  # by rule
    kept: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)  # bytes resident of the front process, in time

    def note(self, shot: Shot, outcome: Outcome, wrong: str | None) -> None:
        self.requests += 1
        self.rules[shot.rule] += 1
        came = [str(answer.status) for answer in outcome.answers] or ["left" if shot.leaves else "closed"]
        self.statuses.update(came)
        self.slowest[came[-1]] = max(outcome.seconds, self.slowest.get(came[-1], 0.0))
        if wrong is not None:
            self.complaints[shot.rule] += 1
            if len(self.kept) < MOST_KEPT:
                self.kept.append(f"{shot.rule}: {wrong}\n    sent: {_shown(shot)}")


def resident(pid: int) -> int:
    """Bytes of a process's memory."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} must be running")


def drive(address: tuple[str, int], shots: Iterator[Shot], requests: int, connections: int, pid: int) -> Tally:
    """`requests` shots, `connections` at a time; `pid` is the process whose memory is watched."""
    return asyncio.run(_drive(address, islice(shots, requests), connections, pid))


async def _drive(address: tuple[str, int], shots: Iterator[Shot], connections: int, pid: int) -> Tally:
    tally = Tally(memory=[resident(pid)])
    began = time.monotonic()
    watching = asyncio.create_task(_watch(tally, pid))
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(_shoot_all(address, shots, tally))
    watching.cancel()
    tally.memory.append(resident(pid))
    tally.seconds = time.monotonic() - began
    return tally


async def _shoot_all(address: tuple[str, int], shots: Iterator[Shot], tally: Tally) -> None:
    for shot in shots:
        try:
            outcome = await shoot(*address, shot)
        except (OSError, TimeoutError) as error:
            outcome = Outcome(fault=f"no connection within {LIMIT_SECONDS:g} s: {error!r}")
        tally.note(shot, outcome, complaint(shot, outcome))


async def _watch(tally: Tally, pid: int) -> None:
    while True:
        await asyncio.sleep(SAMPLE_SECONDS)
        tally.memory.append(resident(pid))


def _shown(shot: Shot) -> str:
    sent = b"".join(piece for piece in shot.pieces if isinstance(piece, bytes))
    return repr(sent if len(sent) < 700 else sent[:350] + b" ... " + sent[-350:])
