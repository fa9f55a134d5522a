"""What the HTTP parser refuses, as errors of ours: which status and code, in words for the one who wrote the client.

Answering them is `protocol`.
"""

import h11

from onepass.server.http.errors import HttpError

CLOSE = {"Connection": "close"}  # the rest of a refused body is not waited for
TLS_HANDSHAKE = b"\x16\x03"
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n"


def refusal_of(error: h11.RemoteProtocolError, first_bytes: bytes, max_head_bytes: int) -> HttpError:
    """`first_bytes`: the first that came on the connection."""
    said = str(error)
    if first_bytes.startswith(TLS_HANDSHAKE):
        return _refused(400, "tls_on_plain_port", "this port takes plain HTTP, and the client began a TLS handshake")
    if first_bytes.startswith(HTTP2_PREFACE):
        return unsupported_version("2")
    if error.error_status_hint == 431:
        return head_too_large(max_head_bytes)
    if "Host" in said:
        return _refused(400, "invalid_host", "the request must have one Host header")
    if "Content-Length" in said:
        return _refused(400, "invalid_content_length", "the request must have one Content-Length, a whole number")
    if "Transfer-Encoding" in said:
        return _refused(501, "unsupported_transfer_encoding", "the only Transfer-Encoding that is supported is chunked")
    if "chunk" in said:
        return _refused(400, "invalid_chunk", "a chunk of the body must begin with its size in hexadecimal digits")
    return _refused(400, "invalid_http", "the request must be HTTP/1.1: a request line, then headers, then the body")


def head_too_large(max_head_bytes: int) -> HttpError:
    message = f"the request's line and headers must have at most {max_head_bytes:,} bytes"
    return _refused(431, "headers_too_large", message)


def unsupported_version(version: str) -> HttpError:
    return _refused(505, "unsupported_http_version", f"the HTTP version must be 1.1 or 1.0; got {version}")


def _refused(status: int, code: str, message: str) -> HttpError:
    return HttpError(status, code, message, CLOSE)
