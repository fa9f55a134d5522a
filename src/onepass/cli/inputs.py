"""What `onepass score` reads: query and items from arguments, files or stdin, and whole requests from JSONL.

Mistakes name the file and the line. Checking a request against the model is `engine.encode`.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from onepass.api import ScoreRequest
from onepass.errors import RequestError

STDIN = "-"
REQUEST_FIELDS = tuple(field.name for field in fields(ScoreRequest))


def read_query(args: argparse.Namespace) -> str:
    """`--query Q` (- is stdin) or `--query-file F`, without the line break that ends a text file."""
    if args.query is not None and args.query != STDIN:
        return _argument(args.query, "--query")
    text = _read(STDIN if args.query == STDIN else args.query_file, "query")
    return text.removesuffix("\n")


def read_items(args: argparse.Namespace) -> list[str]:
    """`--items I1 I2 ...` or `--items-file F`: one item a line, also empty ones; JSON values in a .jsonl file."""
    if args.items is not None:
        return [_argument(item, "--items") for item in args.items]
    if args.items_file.endswith(".jsonl"):
        return [_json_item(value, where) for value, where in _json_lines(args.items_file, "items")]
    text = _read(args.items_file, "items")
    # Not splitlines(): that would also break at form feeds and Unicode separators inside an item.
    return text.removesuffix("\n").split("\n") if text else []


def read_requests(name: str) -> list[ScoreRequest]:
    """One JSON object a line, with the fields of `ScoreRequest`."""
    requests = [_json_request(value, where) for value, where in _json_lines(name, "requests")]
    if not requests:
        raise RequestError(
            "missing_requests", f"--requests must hold at least one request; {name} is empty", "requests"
        )
    return requests


def _json_item(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    named = [value[key] for key in ("text", "item") if key in value] if isinstance(value, dict) else []
    if len(named) != 1 or not isinstance(named[0], str):
        raise RequestError(
            "invalid_items", f'{where}: an item must be a string, or an object with a string "text" or "item"', "items"
        )
    return named[0]


def _json_request(value: Any, where: str) -> ScoreRequest:
    if not isinstance(value, dict):
        raise RequestError("invalid_request", f"{where}: a request must be an object; got {type(value).__name__}")
    unknown = sorted(value.keys() - set(REQUEST_FIELDS))
    if unknown:
        known = ", ".join(REQUEST_FIELDS)
        raise RequestError("invalid_request", f"{where}: no such field: {', '.join(unknown)}; the fields are {known}")
    return ScoreRequest(**value)


def _json_lines(name: str, param: str) -> Iterator[tuple[Any, str]]:
    """Each line's value and where it stands; blank lines are allowed."""
    for number, line in enumerate(_read(name, param).split("\n"), start=1):
        where = f"{_called(name)}, line {number}"
        if not line.strip():
            continue
        try:
            yield json.loads(line), where
        except ValueError as error:
            raise RequestError("invalid_json", f"{where}: not JSON: {error}", param) from error


def _read(name: str, param: str) -> str:
    """A file's text with line breaks as \\n; a byte order mark is no part of it."""
    try:
        raw = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise RequestError("invalid_text", f"{_called(name)} must be UTF-8; {error}", param) from error
    except OSError as error:
        raise RequestError("missing_file", f"cannot read {name}: {error.strerror}", param) from error


def _argument(text: str, option: str) -> str:
    """Bytes of the command line that are no text arrive as lone surrogates, which no tokenizer can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError("invalid_text", f"{option} must be UTF-8; got {text!r}") from error
    return text


def _called(name: str) -> str:
    return "stdin" if name == STDIN else name
