"""Rows of a JSONL, CSV, TSV or Parquet file, read one after another from a position that can be returned to.

A row that cannot be read (a line that is no JSON object) is a `BadRow`: its error becomes part of the output. A file
that cannot be read at all is a RequestError. What rows mean is `row_fields`.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from onepass.errors import RequestError

ENDINGS = (".jsonl", ".csv", ".tsv", ".parquet")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
BATCH_ROWS = 1024  # of a Parquet file, in memory at a time


@dataclass(frozen=True)
class BadRow:
    error: str


@dataclass(frozen=True)
class Read:
    """A row, and the position of the next one."""

    row: dict[str, Any] | BadRow
    position: int


class RowSource(Protocol):
    columns: list[str]  # of the file; of a JSONL file's first row
    size: int  # what a position becomes at the end
    is_text: bool  # cells are text, whatever they mean

    def read(self, position: int) -> Iterator[Read]: ...


def open_rows(path: Path) -> RowSource:
    if not path.is_file():
        raise RequestError("no_input", f"no such file: {path}")
    ending = path.suffix.lower()
    if ending == ".jsonl":
        return JsonRows(path)
    if ending in DELIMITERS:
        return CsvRows(path, DELIMITERS[ending])
    if ending == ".parquet":
        return ParquetRows(path)
    raise RequestError("invalid_input", f"the input must end with {', '.join(ENDINGS)}; got {path.name}")


class JsonRows:
    """Positions are bytes. Empty lines are no rows."""

    is_text = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = path.stat().st_size
        first = next(self.read(0), None)
        self.columns = list(first.row) if first is not None and isinstance(first.row, dict) else []

    def read(self, position: int) -> Iterator[Read]:
        with self._path.open("rb") as file:
            file.seek(position)
            while line := file.readline():
                if line.strip():
                    yield Read(_json_row(line), file.tell())


def _json_row(line: bytes) -> dict[str, Any] | BadRow:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadRow(f"not JSON: {error}")
    return row if isinstance(row, dict) else BadRow(f"a row must be a JSON object; got {type(row).__name__}")


class CsvRows:
    """Positions are rows. The first line names the columns."""

    is_text = True

    def __init__(self, path: Path, delimiter: str) -> None:
        self._path, self._delimiter = path, delimiter
        with self._path.open(encoding="utf-8-sig", newline="") as file:
            try:
                self.columns = next(csv.reader(file, delimiter=delimiter), [])
                self.size = sum(1 for row in csv.reader(file, delimiter=delimiter) if row)
            except (csv.Error, UnicodeDecodeError) as error:
                raise RequestError("invalid_input", f"{path.name} is no CSV file in UTF-8: {error}") from error
        if len(set(self.columns)) < len(self.columns) or not self.columns:
            raise RequestError("invalid_input", f"the first line of {path.name} must name each column once")

    def read(self, position: int) -> Iterator[Read]:
        with self._path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.reader(file, delimiter=self._delimiter)
            next(table)
            for number, cells in enumerate(filter(None, table)):
                if number >= position:
                    yield Read(self._row(cells), number + 1)

    def _row(self, cells: list[str]) -> dict[str, Any] | BadRow:
        if len(cells) != len(self.columns):
            return BadRow(f"the row has {len(cells)} columns; the header has {len(self.columns)}")
        return dict(zip(self.columns, cells, strict=True))


class ParquetRows:
    """Positions are rows; whole row groups before the first are not read."""

    is_text = False

    def __init__(self, path: Path) -> None:
        pyarrow = parquet_library()
        try:
            self._file = pyarrow.ParquetFile(path)
        except Exception as error:  # the library has many kinds for a damaged file
            raise RequestError("invalid_input", f"{path.name} is no whole Parquet file: {error}") from error
        self.columns = list(self._file.schema_arrow.names)
        self.size = self._file.metadata.num_rows

    def read(self, position: int) -> Iterator[Read]:
        first = 0
        for group in range(self._file.num_row_groups):
            rows = self._file.metadata.row_group(group).num_rows
            if first + rows > position:
                yield from self._group(group, first, position)
            first += rows

    def _group(self, group: int, first: int, position: int) -> Iterator[Read]:
        for batch in self._file.iter_batches(BATCH_ROWS, row_groups=[group]):
            for row in batch.to_pylist():
                first += 1
                if first > position:
                    yield Read(row, first)


def parquet_library() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise RequestError("no_pyarrow", "Parquet files need pyarrow: pip install 'onepass[parquet]'") from error
    return pyarrow.parquet
