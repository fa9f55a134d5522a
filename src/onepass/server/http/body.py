"""A request's body: read within limits of size and time, decompressed within limits, and parsed as a JSON object.

The limits are `body_limits`; decompressing is `decompression`, parsing `json_object`. A body that is refused never
reaches the engine.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Receive

from onepass.server.http.body_limits import BodyBudget, Limits
from onepass.server.http.decompression import decompressor
from onepass.server.http.errors import ClientGone, HttpError
from onepass.server.http.json_object import SMALL_BYTES, parse_object
from onepass.server.http.wire_errors import CLOSE


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
