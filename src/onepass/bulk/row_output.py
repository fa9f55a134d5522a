"""Output rows in the form that the file's name asks for: JSONL as they were written, CSV and Parquet converted.

Lists and objects are JSON text in a CSV file. A Parquet file has typed columns: the results' own types, and of the
input's columns those of the input file, or JSON text where a column has several.
"""

import csv
import json
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from onepass.bulk.row_source import DELIMITERS, ENDINGS, parquet_library
from onepass.errors import RequestError

GROUP_ROWS = 4096  # of a Parquet file: in memory at a time
ERROR = "error"


def check_output(path: Path) -> None:
    if path.suffix.lower() not in ENDINGS:
        raise RequestError("invalid_output", f"--out must end with {', '.join(ENDINGS)}; got {path.name}")
    if path.suffix.lower() == ".parquet":
        parquet_library()


def converted(rows: Path, out: Path, columns: Sequence[str], results: Sequence[str]) -> Path:
    """The file that becomes `out`: `rows` itself, or one beside it. `results` are the columns that were computed."""
    ending = out.suffix.lower()
    if ending == ".jsonl":
        return rows
    target = rows.with_name(f"converted{ending}")
    if ending == ".parquet":
        _write_parquet(rows, target, columns, results)
    else:
        _write_csv(rows, target, [*columns, *results, ERROR], DELIMITERS[ending])
    with target.open("rb") as file:
        os.fsync(file.fileno())
    return target


def _read(rows: Path) -> Iterator[dict[str, Any]]:
    with rows.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _write_csv(rows: Path, target: Path, columns: Sequence[str], delimiter: str) -> None:
    with target.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter=delimiter)
        table.writerow(columns)
        for row in _read(rows):
            table.writerow([_cell(row.get(column)) for column in columns])


def _cell(value: Any) -> Any:
    if isinstance(value, list | dict | bool):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else value


def _write_parquet(rows: Path, target: Path, columns: Sequence[str], results: Sequence[str]) -> None:
    import pyarrow

    schema = pyarrow.schema(
        [
            *((name, _input_type(rows, name)) for name in columns),
            *((name, result_types()[name]) for name in results),
            (ERROR, pyarrow.string()),
        ]
    )
    with parquet_library().ParquetWriter(target, schema) as writer:
        source = _read(rows)
        while group := list(islice(source, GROUP_ROWS)):
            cells = [{field.name: _fitting(row.get(field.name), field.type) for field in schema} for row in group]
            writer.write_table(pyarrow.Table.from_pylist(cells, schema))


def result_types() -> dict[str, Any]:
    import pyarrow

    number, numbers = pyarrow.float64(), pyarrow.list_(pyarrow.float64())
    ranked = pyarrow.struct([("index", pyarrow.int64()), ("score", number)])
    return {
        "scores": pyarrow.list_(numbers),
        "label_mass": numbers,
        "logprobs": pyarrow.list_(numbers),
        "ranking": pyarrow.list_(ranked),
        "method": pyarrow.string(),
        "answers": pyarrow.string(),  # their members differ by question
    }


def _input_type(rows: Path, name: str) -> Any:
    """Whole numbers, numbers, true or false where a column has nothing else; text otherwise."""
    import pyarrow

    kinds = {type(row.get(name)) for row in _read(rows)} - {type(None)}
    if kinds == {bool}:
        return pyarrow.bool_()
    if kinds == {int}:
        return pyarrow.int64()
    return pyarrow.float64() if kinds and kinds <= {int, float} else pyarrow.string()


def _fitting(value: Any, kind: Any) -> Any:
    import pyarrow

    if value is not None and kind == pyarrow.string() and not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return value
