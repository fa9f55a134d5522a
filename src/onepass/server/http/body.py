"""A request's body: read within limits of size and time, decompressed within limits, and parsed as a JSON object.

What the members mean is `schema`; a body that is refused never reaches the engine.
"""

import asyncio
import json
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.types import Receive

from onepass.errors import Overloaded, RequestError, shown
from onepass.server.http.errors import ClientGone, HttpError
from onepass.server.http.json_size import check_json_size, quote_places
from onepass.server.http.memory import release_free_memory
from onepass.server.http.wire_errors import unsupported_version

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ZSTD_WINDOW_LOG = 23  # 8 MiB: what RFC 8878 asks of every decoder; a larger window is memory at the client's command
MOST_BLANKS = 64  # between a name and its colon; more are looked at again, slowly
MOST_NAMES = 64  # looking for each name costs a pass over the body
BODIES_AT_ONCE = 4  # of the largest size, or as many more as are smaller
MOST_QUOTES = 10_000  # up to here a name is looked for only where one is
SLICE_BYTES = 1 << 20
LARGE_BYTES = 1 << 20  # after more, memory goes back to the system
FREED_SECONDS = 1.0
SMALL_BYTES = 1 << 16  # more are parsed on a thread
CLOSE = {"Connection": "close"}  # the rest of a refused body is not waited for


@dataclass(frozen=True)
class Limits:
    """How much of a body is taken. What may run at a time is `admission`'s budget."""

    max_body_bytes: int = 64 << 20  # as sent
    max_decompressed_bytes: int = 128 << 20
    body_seconds: float = 60.0  # from the first byte of the body to its last
    max_entries: int = 1 << 17  # items or documents of one request


class BodyBudget:
    """The bytes of bodies that are in memory at a time, of all requests together, from when they are read until they
    are answered: beyond it a request gets 429. Bodies are decompressed two at a time, for a few kilobytes may ask for
    the whole limit."""

    def __init__(self, limits: Limits) -> None:
        self.most = BODIES_AT_ONCE * limits.max_body_bytes
        self.held = 0
        self.decompressing = asyncio.Semaphore(2)

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """A function that takes so many bytes more, all given back at the end."""
        mine = 0

        def take(count: int) -> None:
            nonlocal mine
            if self.held + count > self.most:
                raise Overloaded(f"the bodies in memory have {self.held:,} bytes; the limit is {self.most:,}", 1.0)
            mine += count
            self.held += count

        try:
            yield take
        finally:
            self.held -= mine
            if mine > LARGE_BYTES:  # what was made of the body is freed shortly after
                loop = asyncio.get_running_loop()
                loop.call_later(FREED_SECONDS, loop.run_in_executor, None, release_free_memory)


async def read_object(
    headers: Headers, receive: Receive, limits: Limits, room: BodyBudget, take: Callable[[int], None]
) -> dict[str, Any]:
    """The body as a JSON object; `take` is of a share of `room` that is held as long as the object is."""
    body = await read_body(headers, receive, limits, room, take)
    if len(body) <= SMALL_BYTES:
        return parse_object(body, limits)
    return await asyncio.to_thread(parse_object, body, limits)


async def read_body(
    headers: Headers, receive: Receive, limits: Limits, room: BodyBudget, take: Callable[[int], None]
) -> bytes:
    check_type(headers)
    decompress = decompressor(headers)
    declared = headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > limits.max_body_bytes:
        raise _too_large(limits.max_body_bytes, f"{int(declared):,}")
    try:
        async with asyncio.timeout(limits.body_seconds):
            body = await _received(receive, limits.max_body_bytes, take)
    except TimeoutError:
        message = f"the body must arrive within {limits.body_seconds:g} seconds"
        raise HttpError(408, "body_timeout", message, CLOSE) from None
    if decompress is None:
        return body
    # On a thread however small it is: four kilobytes of zstd can become half a second of work.
    async with room.decompressing:
        whole = await asyncio.to_thread(decompress, body, limits.max_decompressed_bytes)
    take(max(0, len(whole) - len(body)))
    return whole


async def _received(receive: Receive, limit: int, take: Callable[[int], None]) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit, f"at least {size:,}")
        take(len(chunk))
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _too_large(limit: int, size: str) -> HttpError:
    return HttpError(413, "body_too_large", f"the body must have at most {limit:,} bytes; got {size}", CLOSE)


def check_version(version: str) -> None:
    if version not in ("1.0", "1.1"):
        raise unsupported_version(version)


def check_framing(version: str, headers: Headers) -> None:
    """A request with two lengths ends at one byte here and at another for a proxy that reads the other length: what
    follows would be taken for a request. RFC 9112, 6.1."""
    if "transfer-encoding" not in headers:
        return
    if "content-length" in headers or version == "1.0":
        message = "a request must have either Content-Length or (from HTTP/1.1 on) Transfer-Encoding, not both"
        raise HttpError(400, "ambiguous_framing", message, CLOSE)


def check_type(headers: Headers) -> None:
    """JSON, or nothing said."""
    said = headers.get("content-type", "").strip()
    kind, _, parameters = said.lower().partition(";")
    kind = kind.strip()
    charset = parameters.partition("charset=")[2].strip(' "').partition(";")[0] or "utf-8"
    is_json = kind in ("", "application/json", "text/json") or (
        kind.startswith("application/") and kind.endswith("+json")
    )
    if not is_json or charset not in ("utf-8", "utf8", "us-ascii"):
        message = f"the body must be application/json in UTF-8; got {said[:200]!r}"
        if kind == "application/x-www-form-urlencoded":
            message += " (with curl: --json in place of -d)"
        raise HttpError(415, "unsupported_media_type", message, CLOSE)


def decompressor(headers: Headers) -> Callable[[bytes, int], bytes] | None:
    said = headers.get("content-encoding", "").strip().lower()
    if said in ("", "identity"):
        return None
    if said in ("gzip", "x-gzip"):
        return gunzip
    if said == "zstd":
        return unzstd
    message = f"the body's encoding must be gzip, zstd or identity; got {said[:200]!r}"
    raise HttpError(415, "unsupported_media_type", message, {**CLOSE, "Accept-Encoding": "gzip, zstd"})


def gunzip(data: bytes, limit: int) -> bytes:
    """Every member of the file, never making more than `limit` bytes and one."""
    parts: list[bytes] = []  # one is usual, and is not copied
    try:
        while data:
            member = zlib.decompressobj(wbits=31)
            parts.append(member.decompress(data, limit + 1 - sum(map(len, parts))))
            _check_size(parts, limit)
            if not member.eof:
                raise zlib.error("it ends too early")
            data = member.unused_data
    except zlib.error as error:
        raise RequestError("invalid_encoding", f"the body must be valid gzip; {error}") from None
    return b"".join(parts)


def unzstd(data: bytes, limit: int) -> bytes:
    parts: list[bytes] = []
    try:
        while data:
            frame = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG})
            parts.append(frame.decompress(data, limit + 1 - sum(map(len, parts))))
            _check_size(parts, limit)
            if not frame.eof:
                raise zstd.ZstdError("it ends too early")
            data = frame.unused_data
    except zstd.ZstdError as error:
        raise RequestError("invalid_encoding", f"the body must be valid zstd; {error}") from None
    return b"".join(parts)


def _check_size(parts: list[bytes], limit: int) -> None:
    if sum(map(len, parts)) > limit:
        message = f"the body must decompress to at most {limit:,} bytes; it gives more"
        raise HttpError(413, "body_too_large", message)


def parse_object(body: bytes, limits: Limits | None = None) -> dict[str, Any]:
    """Strict JSON (no NaN, no lone surrogates, no endless nesting) whose names occur once."""
    check_json_size(body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError("invalid_json", f"the body must be JSON; {_in_json_words(error)}") from None
    if not isinstance(value, dict):
        raise RequestError("invalid_json", f"the body must be a JSON object; got {shown(value)}")
    _check_entries(value, (limits or Limits()).max_entries)
    _check_names(body, value)
    return value


def _in_json_words(error: orjson.JSONDecodeError) -> str:
    """orjson speaks of `str` and surrogates where the bytes are not UTF-8."""
    said = str(error)
    return "it must be in UTF-8, without lone surrogates" if said.startswith("str is not valid UTF-8") else said


def _check_entries(value: dict[str, Any], limit: int) -> None:
    """Items, documents and the like; token ids are many by nature, and limited by the model."""
    for name, entries in value.items():
        if isinstance(entries, list) and len(entries) > limit and not isinstance(entries[0], int):
            message = f"{name[:80]} must have at most {limit:,} entries; got {len(entries):,}. Send several requests"
            raise RequestError("too_many_entries", message, name[:80])


def _check_names(body: bytes, value: dict[str, Any]) -> None:
    """orjson keeps the last of two members of one name. Only where a name's bytes occur twice as a name, which is rare
    and may be innocent, is the body read again, slowly. Of more names than any dialect has, some are unknown: refused
    later."""
    if len(value) > MOST_NAMES:
        return
    names = [orjson.dumps(name) for name in value]
    places = quote_places(body, MOST_QUOTES) if len(body) > SMALL_BYTES else None
    if all(_count(body, name, places) <= 1 for name in names):
        return
    if not any(_is_name_twice(body, name) for name in names):
        return

    def once(pairs: list[tuple[str, Any]]) -> None:
        twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        if twice:
            raise RequestError("invalid_json", f"a name must occur once in an object; {twice[0]!r} is there twice")

    try:
        json.loads(body, object_pairs_hook=once, parse_int=str, parse_float=str)
    except RecursionError:
        raise RequestError("invalid_json", "the body must be JSON of moderate depth") from None


def _count(body: bytes, quoted: bytes, places: list[int] | None) -> int:
    """How often it occurs. Looked for only where a quotation mark is, if those are known; else in slices, between which
    other threads get the interpreter's lock."""
    if places is not None:
        return sum(body.startswith(quoted, place) for place in places)
    slices = range(0, len(body), SLICE_BYTES)
    return sum(body.count(quoted, start, start + SLICE_BYTES + len(quoted) - 1) for start in slices)


def _is_name_twice(body: bytes, quoted: bytes) -> bool:
    """Whether a colon follows a quoted name more than once; "items" may well be an item."""
    count, at = 0, body.find(quoted)
    while at >= 0 and count < 2:
        after = at + len(quoted)
        count += body[after : after + MOST_BLANKS].lstrip(b" \t\r\n")[:1] in (b":", b"")
        at = body.find(quoted, after)
    return count > 1
