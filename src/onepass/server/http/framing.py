"""Where a request ends: HTTP versions that are served, and lengths that contradict each other.

What its body holds is `body`.
"""

from starlette.datastructures import Headers

from onepass.server.http.errors import HttpError
from onepass.server.http.wire_errors import CLOSE, unsupported_version


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
