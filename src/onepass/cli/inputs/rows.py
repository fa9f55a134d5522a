"""Texts of a file, one a row, with the ids that come back beside their results: plain lines, JSONL, CSV or TSV.

The kind of file is its name's ending. What a whole request of `--requests` holds is `requests`.
"""

import codecs
import csv
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onepass.errors import RequestError

STDIN = "-"
TEXT_COLUMNS = ("text", "item", "document", "passage", "content")
ID_COLUMN = "id"
DELIMITERS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True)
class Rows:
    """`ids` is None where the file has none."""

    texts: list[str]
    ids: list[Any] | None = None


@dataclass(frozen=True)
class Columns:
    """As the user named them; None is found by the names that are usual."""

    text: str | None = None
    id: str | None = None

    @property
    def options(self) -> str:
        given = (("--text-column", self.text), ("--id-column", self.id))
        return " and ".join(option for option, value in given if value is not None)


def read_rows(name: str, columns: Columns, param: str) -> Rows:
    """`param` is what the rows are: items or documents."""
    ending = Path(name).suffix.lower()
    if ending in DELIMITERS:
        rows = _table_rows(name, DELIMITERS[ending], columns, param)
    elif ending == ".jsonl":
        rows = _json_rows(name, columns, param)
    else:
        if columns.options:
            raise _wrong(f"{columns.options} names a column of a .csv, .tsv or .jsonl file; got {called(name)}", param)
        text = read_text(name, param)
        # Not splitlines(): that would also break at form feeds and Unicode separators inside an item.
        rows = Rows(text.removesuffix("\n").split("\n") if text else [])
    if not rows.texts:
        raise _wrong(f"{called(name)} holds no {param}: give at least one", param)
    return rows


def _table_rows(name: str, delimiter: str, columns: Columns, param: str) -> Rows:
    table = csv.reader(io.StringIO(read_text(name, param), newline=""), delimiter=delimiter, strict=True)
    try:
        header = next(table, [])
        text, ident = _chosen(name, header, columns, param)
        rows = [(table.line_num, row) for row in table if row]
    except csv.Error as error:
        raise _wrong(f"{called(name)}, line {table.line_num}: {error}", param) from error
    for number, row in rows:
        if len(row) != len(header):
            raise _wrong(f"{called(name)}, line {number}: {len(row)} columns; the header has {len(header)}", param)
    return Rows([row[text] for _, row in rows], None if ident is None else [row[ident] for _, row in rows])


def _chosen(name: str, header: list[str], columns: Columns, param: str) -> tuple[int, int | None]:
    """The places of the text's and the id's columns."""
    listed = ", ".join(header)
    for wanted in (columns.text, columns.id):
        if wanted is not None and wanted not in header:
            raise _wrong(f"{called(name)} has no column {wanted!r}; its columns are {listed}", param)
    ident = columns.id or (ID_COLUMN if ID_COLUMN in header else None)
    others = [column for column in header if column != ident]
    text = columns.text or next((column for column in TEXT_COLUMNS if column in header), None)
    if text is None and len(others) == 1:
        text = others[0]
    if text is None:
        raise _wrong(f"{called(name)} has the columns {listed}: say which one is scored with --text-column", param)
    return header.index(text), None if ident is None else header.index(ident)


def _json_rows(name: str, columns: Columns, param: str) -> Rows:
    texts, ids = [], []
    for line in json_lines(name, param):
        value, where = line.value, line.where
        if isinstance(value, RequestError):
            raise RequestError(value.code, f"{where}: {value}", param)
        texts.append(_json_text(value, where, columns, param))
        ids.append(value.get(columns.id or ID_COLUMN) if isinstance(value, dict) else None)
        if columns.id is not None and ids[-1] is None:
            raise _wrong(f"{where}: no {columns.id!r}, which --id-column names", param)
    return Rows(texts, ids if any(ident is not None for ident in ids) else None)


def _json_text(value: Any, where: str, columns: Columns, param: str) -> str:
    if isinstance(value, str) and columns.text is None:
        return value
    names = (columns.text,) if columns.text is not None else TEXT_COLUMNS
    texts = [value[key] for key in names if key in value] if isinstance(value, dict) else []
    if len(texts) != 1 or not isinstance(texts[0], str):
        wanted = " or ".join(f'"{key}"' for key in names)
        has = f"; it has {', '.join(value)}" if isinstance(value, dict) else ""
        plain = "a string, or " if columns.text is None else ""
        raise _wrong(f"{where}: a row must be {plain}an object with a string {wanted}{has}", param)
    return texts[0]


@dataclass(frozen=True)
class JsonLine:
    """A line of a JSONL file; `value` is an error where the line is no JSON."""

    value: Any
    number: int
    where: str


def json_lines(name: str, param: str) -> Iterator[JsonLine]:
    """The lines of a JSONL file that are not blank, read as they are asked for: it may be larger than memory."""
    for number, line in enumerate(_lines(name, param), start=1):
        if line.strip():
            yield JsonLine(_json_value(line, param), number, f"{called(name)}, line {number}")


def _json_value(line: bytes, param: str) -> Any:
    try:
        return json.loads(line.rstrip(b"\r\n").decode())
    except UnicodeDecodeError as error:
        return RequestError("invalid_text", f"must be UTF-8; {error}", param)
    except json.JSONDecodeError as error:  # its own text would name a second line, always the first
        return RequestError("invalid_json", f"not JSON: {error.msg} (column {error.colno})", param)
    except (ValueError, RecursionError) as error:
        return RequestError("invalid_json", f"not JSON: {error}", param)


def read_text(name: str, param: str) -> str:
    """A file's text with line breaks as \\n; a byte order mark is no part of it."""
    try:
        raw = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise RequestError("invalid_text", f"{called(name)} must be UTF-8; {error}", param) from error
    except OSError as error:
        raise RequestError("missing_file", f"cannot read {name}: {error.strerror}", param) from error


def _lines(name: str, param: str) -> Iterator[bytes]:
    try:
        with sys.stdin.buffer if name == STDIN else Path(name).open("rb") as file:
            yield file.readline().removeprefix(codecs.BOM_UTF8)
            yield from file
    except OSError as error:
        raise RequestError("missing_file", f"cannot read {name}: {error.strerror}", param) from error


def called(name: str) -> str:
    return "stdin" if name == STDIN else name


def _wrong(message: str, param: str) -> RequestError:
    return RequestError(f"invalid_{param}", message, param)
