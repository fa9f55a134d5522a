"""Requests as bytes, for the rules to build on: whole HTTP with the right length, and which statuses will do."""

from collections.abc import Callable
from random import Random

from server.fuzz.exchange import Shot

BAD_INPUT = frozenset({400, 404, 405, 413, 415})
ANY = BAD_INPUT | {200}
BAD_HEAD = frozenset({431, 501, 505})  # too large, a framing or an HTTP version that there is not
DEADLINE = frozenset({200, 400, 504})  # 504 only where the client set itself a limit
JSON = "Content-Type: application/json"
Rule = Callable[[Random], Shot]


def http(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: fuzz", *headers]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def post(rule: str, path: str, body: bytes, *headers: str, statuses: frozenset[int] = ANY) -> Shot:
    return Shot(rule, (http("POST", path, body, JSON, *headers),), statuses)
