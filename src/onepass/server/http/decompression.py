"""Bodies in gzip and zstd, decompressed to no more than a limit.

Which bodies are decompressed, and how many at a time, is `body`.
"""

import sys
import zlib
from collections.abc import Callable

from starlette.datastructures import Headers

from onepass.errors import RequestError
from onepass.server.http.errors import HttpError
from onepass.server.http.wire_errors import CLOSE

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ZSTD_WINDOW_LOG = 23  # 8 MiB: what RFC 8878 asks of every decoder; a larger window is memory at the client's command


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
