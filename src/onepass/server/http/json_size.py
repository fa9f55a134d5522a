"""How many values a JSON text holds, counted before it is parsed: two bytes of JSON can become a hundred of memory.

Parsing holds the interpreter's lock: a million numbers take some 80 ms, a million empty objects 140 ms. A text is
counted in pieces by numpy, which does not hold it. What is inside strings counts only where a quick count, which takes
it for structure, is over the limit.
"""

from collections.abc import Iterator

import numpy as np

from onepass.errors import RequestError

MAX_VALUES = 1 << 21
MAX_CONTAINERS = 1 << 18  # objects and lists
CHUNK_BYTES = 1 << 17
QUOTE, COMMA, OBJECT, LIST = b'",{['


def check_json_size(body: bytes) -> None:
    """Raises RequestError for more values than any request needs."""
    if len(body) <= MAX_CONTAINERS:
        return
    if _has_too_many(_chunks(body)) and (what := _has_too_many(_outside_strings(_chunks(body)))):
        raise RequestError("too_many_values", f"the body must hold at most {what}; it holds more")


def quote_places(body: bytes, limit: int) -> list[int] | None:
    """Where the quotation marks are, or None if there are more than `limit`."""
    places: list[int] = []
    for start in range(0, len(body), CHUNK_BYTES):
        chunk = np.frombuffer(body, np.uint8, min(CHUNK_BYTES, len(body) - start), start)
        found = np.flatnonzero(chunk == QUOTE)
        if len(places) + found.size > limit:
            return None
        places += (found + start).tolist()
    return places


def _chunks(body: bytes) -> Iterator[bytes]:
    """Pieces that do not end within an escape."""
    start = 0
    while start < len(body):
        end = start + CHUNK_BYTES
        piece = body[start:end]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = body[start : end + 1]
        yield piece
        start += len(piece)


def _outside_strings(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The text without its strings."""
    inside = 0
    for chunk in chunks:
        plain = np.frombuffer(chunk.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
        quotes = np.cumsum(plain == QUOTE, dtype=np.uint32) + inside
        yield plain[quotes % 2 == 0].tobytes()
        inside = int(quotes[-1]) % 2 if quotes.size else inside


def _has_too_many(chunks: Iterator[bytes]) -> str | None:
    """Of what there is too much, as soon as there is."""
    values = containers = 0
    for chunk in chunks:
        some_values, some_containers = _count(chunk)
        values, containers = values + some_values, containers + some_containers
        if containers > MAX_CONTAINERS:
            return f"{MAX_CONTAINERS:,} lists and objects"
        if values > MAX_VALUES:
            return f"{MAX_VALUES:,} values"
    return None


def _count(chunk: bytes) -> tuple[int, int]:
    """Values, and the lists and objects among them."""
    array = np.frombuffer(chunk, np.uint8)
    containers = int(np.count_nonzero(array == OBJECT) + np.count_nonzero(array == LIST))
    return containers + int(np.count_nonzero(array == COMMA)), containers
