"""What an engine process writes on stderr, line by line into the server's log: its own JSON records, and whatever C++
libraries or a dying interpreter print past them."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import orjson

LONGEST_LINE = 1 << 20
# `W1116 13:38:29.581 …` and `E0000 00:00:1731…`: how XLA's C++ (absl) writes its severity.
ABSL = re.compile(r"([IWEF])\d{4} \d\d:\d\d:\d\d?")
ABSL_LEVELS = {"I": logging.DEBUG, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}
ABSL_PREAMBLE = "WARNING: All log messages before absl::InitializeLog()"

log = logging.getLogger("onepass.server.engine")


async def relay_lines(stream: asyncio.StreamReader, number: int) -> None:
    """Log every line of `stream`, the stderr of engine `number`, until it ends."""
    async for line in _lines(stream):
        log_line(line, number)


def log_line(line: str, number: int) -> None:
    level, message, fields = parsed(line)
    if message:
        log.log(level, message, extra={"fields": {"engine": number, **fields}})


def parsed(line: str) -> tuple[int, str, dict[str, Any]]:
    """Level, message and other members of a line. A line that is no record of ours counts as a warning."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        record = None
    if isinstance(record, dict) and isinstance(record.get("level"), str) and "message" in record:
        level = logging.getLevelNamesMapping().get(record["level"].upper(), logging.WARNING)
        rest = {name: value for name, value in record.items() if name not in ("time", "level", "message", "engine")}
        return level, str(record["message"]), rest
    if (severity := ABSL.match(line)) is not None:
        return ABSL_LEVELS[severity[1]], line, {}
    return logging.DEBUG if line.startswith(ABSL_PREAMBLE) else logging.WARNING, line, {}


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines without their ends; one that never ends is given in parts."""
    rest = b""
    while data := await stream.read(1 << 16):
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace").strip()
        if len(rest) > LONGEST_LINE:
            yield rest.decode("utf-8", "replace").strip()
            rest = b""
    if rest:
        yield rest.decode("utf-8", "replace").strip()
