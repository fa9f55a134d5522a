"""A body's bytes as a JSON object: strict, its names unique, its lists of bounded length.

What the members mean is `schema`; how many values a body may hold is `json_size`.
"""

import json
from collections import Counter
from typing import Any

import orjson

from onepass.errors import RequestError, shown
from onepass.server.http.body_limits import Limits
from onepass.server.http.json_size import check_json_size, quote_places

MOST_BLANKS = 64  # between a name and its colon; more are looked at again, slowly
MOST_NAMES = 64  # looking for each name costs a pass over the body
MOST_QUOTES = 10_000  # up to here a name is looked for only where one is
SLICE_BYTES = 1 << 20
SMALL_BYTES = 1 << 16  # more are parsed on a thread, and names are looked for at quotation marks


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
