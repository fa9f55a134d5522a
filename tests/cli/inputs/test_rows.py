"""Rows of CSV, TSV and JSONL files: the text's column, the id's, and mistakes that name them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from onepass.cli.inputs.rows import Columns, Rows, read_rows
from onepass.errors import RequestError

Write = Callable[[str, str], str]


@pytest.fixture
def file(tmp_path: Path) -> Write:
    def write(name: str, content: str) -> str:
        (tmp_path / name).write_text(content)
        return str(tmp_path / name)

    return write


def rows_of(name: str, text: str | None = None, ident: str | None = None) -> Rows:
    return read_rows(name, Columns(text, ident), "items")


def test_a_csv_file_has_a_header_and_ids_that_come_back(file: Write) -> None:
    path = file("rows.csv", 'id,text\n7,"one, with a comma"\nb,"two\nlines"\n\n')
    assert rows_of(path) == Rows(["one, with a comma", "two\nlines"], ["7", "b"])


def test_a_file_of_one_column_needs_no_option(file: Write) -> None:
    assert rows_of(file("rows.csv", "review\ngood\nbad\n")) == Rows(["good", "bad"])
    assert rows_of(file("rows.tsv", "id\treview\n1\tgood, really\n")) == Rows(["good, really"], ["1"])


def test_columns_are_chosen_by_name(file: Write) -> None:
    path = file("rows.csv", "sku,title,body\nx1,A,aa\nx2,B,bb\n")
    assert rows_of(path, "body", "sku") == Rows(["aa", "bb"], ["x1", "x2"])
    assert rows_of(path, "title") == Rows(["A", "B"])


@pytest.mark.parametrize(
    ("content", "text", "ident", "message"),
    [
        (
            "sku,title,body\nx,A,a\n",
            None,
            None,
            "has the columns sku, title, body: say which one is scored with --text-column",
        ),
        ("sku,title\nx,A\n", "titel", None, "has no column 'titel'; its columns are sku, title"),
        ("sku,title\nx,A\n", "title", "id", "has no column 'id'"),
        ("id,text\n1,a\n2\n", None, None, "line 3: 1 columns; the header has 2"),
        ('id,text\n1,"a\n', None, None, "line 2: unexpected end of data"),
        ("id,text\n", None, None, "holds no items"),
    ],
)
def test_wrong_columns_are_named(file: Write, content: str, text: str | None, ident: str | None, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        rows_of(file("rows.csv", content), text, ident)
    assert message in str(caught.value)


def test_jsonl_rows_have_ids_and_columns_too(file: Write) -> None:
    path = file("rows.jsonl", '{"id": 1, "text": "a"}\n"b"\n')
    assert rows_of(path) == Rows(["a", "b"], [1, None])
    path = file("rows.jsonl", '{"sku": "x", "body": "a", "text": "t"}\n')
    assert rows_of(path, "body", "sku") == Rows(["a"], ["x"])
    with pytest.raises(
        RequestError, match='line 1: a row must be an object with a string "bod"; it has sku, body, text'
    ):
        rows_of(path, "bod")
    with pytest.raises(RequestError, match="line 1: no 'id', which --id-column names"):
        rows_of(path, "body", "id")


def test_plain_lines_have_no_columns(file: Write) -> None:
    with pytest.raises(RequestError, match=r"--text-column and --id-column names a column of a \.csv"):
        rows_of(file("rows.txt", "a\n"), "text", "id")
