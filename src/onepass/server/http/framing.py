"""Where a request ends: HTTP versions that are served, heads of a bounded size, lengths that contradict each other.

What its body holds is `body`.
"""

from starlette.datastructures import Headers
from starlette.types import Scope

from onepass.server.http.errors import HttpError
from onepass.server.http.wire_errors import CLOSE, head_too_large, unsupported_version

MAX_HEAD_BYTES = 64 << 10
HEADER_EXTRA_BYTES = 4  # a colon, a space, the line's end


def check_version(version: str) -> None:
    if version not in ("1.0", "1.1"):
        raise unsupported_version(version)


def check_head_size(scope: Scope) -> None:
    """The parser counts what it has not read to its end; a head that comes in one piece is counted here."""
    target = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
    headers = sum(len(name) + len(value) + HEADER_EXTRA_BYTES for name, value in scope["headers"])
    if target + headers > MAX_HEAD_BYTES:
        raise head_too_large(MAX_HEAD_BYTES)


def check_framing(version: str, headers: Headers) -> None:
    """A request with two lengths ends at one byte here and at another for a proxy that reads the other length: what
    follows would be taken for a request. RFC 9112, 6.1."""
    if "transfer-encoding" not in headers:
        return
    if "content-length" in headers or version == "1.0":
        message = "a request must have either Content-Length or (from HTTP/1.1 on) Transfer-Encoding, not both"
        raise HttpError(400, "ambiguous_framing", message, CLOSE)
