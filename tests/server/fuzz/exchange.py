"""One shot at the server over a raw socket: bytes sent as they are, with pauses, and whatever answers come back.

What is sent is `grammar`'s choice, and whether the answers will do is `verdict`'s. No HTTP library is in between: it
would mend or refuse what is wrong on purpose.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

QUIET_SECONDS = 0.4  # no answer for so long to what is not a whole request: the client ends its side
LIMIT_SECONDS = 10.0  # for a refusal, or the end of the connection
WORK_SECONDS = 90.0  # for an answer that is computed: a program may have to be compiled for it first
WHOLE = 1 << 24  # bytes of an answer's head or body at most


@dataclass(frozen=True)
class Shot:
    """`pieces`: bytes are sent, numbers are seconds of silence. `answers`: how many must come; None: any number, and
    the connection must end when the client ends its side."""

    rule: str
    pieces: tuple[bytes | float, ...]
    statuses: frozenset[int]
    answers: int | None = 1
    bodiless: bool = False  # HEAD
    leaves: bool = False  # the client does not wait for anything
    ends: bool = False  # the connection must end after the answers: what follows on it could be taken for a request


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Outcome:
    """`fault` says what went wrong between the machines: a hang, or bytes that are not HTTP."""

    answers: list[Answer] = field(default_factory=list)
    fault: str = ""
    ended: bool = False  # by the server
    seconds: float = 0.0  # from the connection to its end


class NotHttp(Exception):
    """The server's bytes are not an answer."""


async def shoot(host: str, port: int, shot: Shot) -> Outcome:
    outcome = Outcome()
    began = time.monotonic()
    reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port, limit=WHOLE), LIMIT_SECONDS)
    try:
        await asyncio.wait_for(_send(writer, shot.pieces), 3 * LIMIT_SECONDS)
        if not shot.leaves:
            await _read(reader, writer, shot, outcome)
    except TimeoutError:
        outcome.fault = "no answer and no end of the connection"
    except NotHttp as error:
        outcome.fault = str(error)
    except ConnectionError:  # the server may close before it has read everything
        outcome.ended = True
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    outcome.seconds = time.monotonic() - began
    return outcome


async def _send(writer: asyncio.StreamWriter, pieces: Sequence[bytes | float]) -> None:
    for piece in pieces:
        if isinstance(piece, bytes):
            with contextlib.suppress(ConnectionError):  # refused already: the answer may still be there to read
                writer.write(piece)
                await writer.drain()
        else:
            await asyncio.sleep(piece)


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, shot: Shot, outcome: Outcome) -> None:
    if shot.answers is None:
        await _read_all(reader, writer, outcome)
        return
    while len(outcome.answers) < shot.answers:
        answer = await asyncio.wait_for(_answer(reader, shot.bodiless), WORK_SECONDS)
        if answer is None:
            outcome.ended = True
            return
        outcome.answers.append(answer)
    if shot.ends:
        more = await asyncio.wait_for(reader.read(1), LIMIT_SECONDS)
        outcome.ended = not more
        outcome.fault = "more bytes after the last answer" if more else ""


async def _read_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, outcome: Outcome) -> None:
    """Answers until the server ends the connection; it has the client's end of it after a short silence."""
    task = asyncio.create_task(_answers_to_end(reader, outcome))
    try:
        await asyncio.wait({task}, timeout=QUIET_SECONDS)
        if not task.done() and writer.can_write_eof():
            with contextlib.suppress(OSError):
                writer.write_eof()
        await asyncio.wait_for(task, LIMIT_SECONDS)
    finally:
        task.cancel()


async def _answers_to_end(reader: asyncio.StreamReader, outcome: Outcome) -> None:
    while (answer := await _answer(reader, False)) is not None:
        outcome.answers.append(answer)
    outcome.ended = True


async def _answer(reader: asyncio.StreamReader, bodiless: bool) -> Answer | None:
    """The next final answer, or None at the end of the connection."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise NotHttp(f"the connection ended inside an answer's head: {error.partial[:200]!r}") from None
            return None
        status, headers = _parse(head)
        if status >= 200:
            break
    try:
        return Answer(status, headers, b"" if bodiless or status in (204, 304) else await _body(reader, headers))
    except asyncio.IncompleteReadError as error:
        raise NotHttp(f"the connection ended inside an answer's body, after {len(error.partial)} bytes") from None


def _parse(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise NotHttp(f"an answer must begin with HTTP/1.x and a status; got {first[:200]!r}")
    return int(rest[:3]), {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    if headers.get("transfer-encoding") != "chunked":
        return await reader.read()
    chunks = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return b"".join(chunks)
