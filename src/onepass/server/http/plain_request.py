"""The head of a plain POST request, which is nearly every one: read by two regular expressions in place of h11.

Plain is a strict subset of what h11 takes: HTTP/1.1, a path without escapes, printable ASCII, one Host, one
Content-Length, nothing about transfer encodings, upgrades or expectations. Whatever is not plain, right or wrong, is
h11's to read and to refuse. The answer to a plain request is written by `PlainCycle`.
"""

import re
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, RequestResponseCycle

MOST_HEAD_BYTES = 16 << 10
MOST_DIGITS = 15
LINE = re.compile(rb"POST (/[A-Za-z0-9/_.~-]*) HTTP/1\.1\r\n")
FIELD = rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]++):[ ]?([!-~]++(?: [!-~]++)*+)\r\n"
FIELDS = re.compile(rb"(?:" + FIELD + rb")*+")
ONE_FIELD = re.compile(FIELD)
# With any of these a request is more than a head and so many bytes.
NOT_PLAIN = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer"})


@dataclass(frozen=True)
class PlainHead:
    path: bytes
    headers: list[tuple[bytes, bytes]]
    body_bytes: int
    size: int  # of the head itself


def plain_head(data: bytes) -> PlainHead | None:
    """The head that `data` begins with, or None where it is not all there or not plain."""
    line = LINE.match(data)
    end = data.find(b"\r\n\r\n", 0, MOST_HEAD_BYTES)
    if line is None or end < 0 or FIELDS.fullmatch(data, line.end(), end + 2) is None:
        return None
    headers = [(name.lower(), value) for name, value in ONE_FIELD.findall(data, line.end(), end + 2)]
    by_name = dict(headers)
    names = [name for name, _ in headers]
    length = by_name.get(b"content-length", b"")
    once = names.count(b"host") == names.count(b"content-length") == 1
    if not once or not length.isdigit() or len(length) > MOST_DIGITS or not NOT_PLAIN.isdisjoint(by_name):
        return None
    if b"connection" in by_name and (names.count(b"connection") > 1 or by_name[b"connection"].lower() != b"keep-alive"):
        return None
    return PlainHead(line[1], headers, int(length), end + 4)


class PlainCycle(RequestResponseCycle):
    """Writes an answer without h11: a short one, head and body, by one call."""

    _head = b""
    _chunked = False

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if self.response_complete or (message["type"] == "http.response.start") == self.response_started:
            raise RuntimeError(f"an answer is one start and then its body; got {message['type']!r}")
        if not self.response_started:
            self.response_started = True
            self._head = self._head_of(message["status"], message.get("headers", ()))
            return
        body, self.response_complete = message.get("body", b""), not message.get("more_body", False)
        if self._chunked:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body += b"0\r\n\r\n" if self.response_complete else b""
        self.transport.write(self._head + body)
        self._head = b""
        if self.response_complete:
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()

    def _head_of(self, status: int, headers: Any) -> bytes:
        fields = [*self.default_headers, *headers]
        names = {name.lower(): value for name, value in fields}
        if b"close" in names.get(b"connection", b"").lower():
            self.keep_alive = False
        self._chunked = b"content-length" not in names and status not in (204, 304)
        if self._chunked:
            fields.append((b"transfer-encoding", b"chunked"))
        lines = [b"HTTP/1.1 %d %b" % (status, STATUS_PHRASES[status]), *(b"%b: %b" % field for field in fields)]
        if any(b"\r" in line or b"\n" in line for line in lines):
            raise RuntimeError("a header of the answer must be one line")
        return b"\r\n".join(lines) + b"\r\n\r\n"
