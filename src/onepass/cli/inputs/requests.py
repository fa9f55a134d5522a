"""What `onepass score` and `onepass rank` read: queries and texts from arguments, files or stdin, and whole requests.

Mistakes name the file and the line. Files of texts are `rows`; checking a request against the model is `scoring`.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from onepass.api import CHAT_FIELDS, ChatOptions, ScoreRequest
from onepass.cli.inputs.rows import ID_COLUMN, STDIN, Columns, JsonLine, Rows, called, json_lines, read_rows, read_text
from onepass.errors import RequestError, shown

# `context` names what a server or a `Scorer` keeps; a command keeps nothing.
REQUEST_FIELDS = tuple(field.name for field in fields(ScoreRequest) if field.name not in ("chat", "context"))
ROW_FIELDS = (ID_COLUMN, *REQUEST_FIELDS, *CHAT_FIELDS)


@dataclass(frozen=True)
class RequestRow:
    """A request of `--requests`; `id` comes back with its result, and `where` names its line in an error."""

    request: ScoreRequest
    where: str
    id: Any = None
    line: int = 0

    def failed(self, error: RequestError) -> "FailedRow":
        return FailedRow(error.code, str(error), self.where, self.id, self.line)


@dataclass(frozen=True)
class FailedRow:
    """A row of `--requests` that has no result, and why. Text, not the error: its traceback would keep the row."""

    code: str
    message: str
    where: str
    id: Any = None
    line: int = 0


def read_query(args: argparse.Namespace) -> str:
    """`--query Q` (- is stdin) or `--query-file F`, without the line break that ends a text file."""
    if args.query is not None and args.query != STDIN:
        query = argument(args.query, "--query")
    else:
        query = read_text(STDIN if args.query == STDIN else args.query_file, "query").removesuffix("\n")
    if not query:
        where = "--query" if args.query not in (None, STDIN) else called(args.query or args.query_file)
        raise RequestError("empty_query", f"the query must not be empty; {where} is", "query")
    return query


def read_messages(name: str) -> dict[str, Any]:
    """`--messages F`, as the fields `messages` and `chat` of a request: a JSON list of chat messages, or an object with
    `messages` and the chat options of `/v1/score`, such as chat_template_kwargs."""
    try:
        given = json.loads(read_text(name, "messages"))
    except ValueError as error:
        raise RequestError("invalid_json", f"{called(name)}: not JSON: {error}", "messages") from error
    options = {} if not isinstance(given, dict) else {key: given[key] for key in given if key != "messages"}
    messages = given.get("messages") if isinstance(given, dict) else given
    if not isinstance(messages, list):
        wanted = 'a list of messages with role and content, or an object with such a list as "messages"'
        got = type(given if messages is None else messages).__name__
        raise RequestError("invalid_messages", f"{called(name)} must hold {wanted}; got {got}", "messages")
    if unknown := sorted(options.keys() - CHAT_FIELDS.keys()):
        known = ", ".join(("messages", *CHAT_FIELDS))
        raise RequestError("invalid_messages", f"{called(name)} may hold {known}; got {', '.join(unknown)}", "messages")
    return {"messages": messages, "chat": ChatOptions.from_fields(options)}


def read_texts(given: list[str] | None, name: str, columns: Columns, param: str) -> Rows:
    """`--items I1 I2 ...` or `--items-file F`; `param` is items or documents."""
    if given is not None:
        return Rows([argument(text, f"--{param}") for text in given])
    return read_rows(name, columns, param)


def read_requests(name: str) -> list[ScoreRequest]:
    """All of them, without their ids; the first row that is no request is an error."""
    return [_sound(row).request for row in request_rows(name)]


def _sound(row: RequestRow | FailedRow) -> RequestRow:
    if isinstance(row, FailedRow):
        raise RequestError(row.code, f"{row.where}: {row.message}")
    return row


def request_rows(name: str) -> Iterator[RequestRow | FailedRow]:
    """One JSON object a line, with the fields of `ScoreRequest` and an id, read as they are asked for."""
    rows = 0
    for line in json_lines(name, "requests"):
        rows += 1
        yield _request_row(line)
    if not rows:
        raise RequestError(
            "missing_requests", f"--requests must hold at least one request; {called(name)} is empty", "requests"
        )


def _request_row(line: JsonLine) -> RequestRow | FailedRow:
    value = line.value
    ident = value.get(ID_COLUMN) if isinstance(value, dict) else None
    try:
        return RequestRow(_request(value), line.where, _writable(ident), line.number)
    except RequestError as error:
        return FailedRow(error.code, str(error), line.where, ident if _is_json(ident) else None, line.number)


def _request(value: Any) -> ScoreRequest:
    if isinstance(value, RequestError):
        raise value
    if not isinstance(value, dict):
        raise RequestError("invalid_request", f"a request must be an object; got {type(value).__name__}")
    unknown = sorted(value.keys() - set(ROW_FIELDS))
    if unknown:
        known = ", ".join(ROW_FIELDS)
        raise RequestError("invalid_request", f"no such field: {', '.join(unknown)}; the fields are {known}")
    given = {name: value[name] for name in REQUEST_FIELDS if name in value}
    return ScoreRequest(**given, chat=ChatOptions.from_fields(value))


def _writable(ident: Any) -> Any:
    if not _is_json(ident):
        raise RequestError("invalid_id", f"id must be JSON, which {shown(ident)} is not", ID_COLUMN)
    return ident


def _is_json(value: Any) -> bool:
    """Python reads NaN, Infinity and 1e999, and JSON has no way to write them."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def argument(text: str, option: str) -> str:
    """Bytes of the command line that are no text arrive as lone surrogates, which no tokenizer can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError("invalid_text", f"{option} must be UTF-8; got {text!r}") from error
    return text
