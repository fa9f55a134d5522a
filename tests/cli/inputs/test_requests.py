"""Texts from arguments, files and stdin arrive exactly as they were written, and bad ones name their place."""

import io
import json
import re
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from onepass.api import ChatOptions
from onepass.cli.inputs.requests import (
    FailedRow,
    RequestRow,
    read_messages,
    read_query,
    read_requests,
    read_texts,
    request_rows,
)
from onepass.cli.inputs.rows import Columns
from onepass.errors import RequestError

Write = Callable[[str, str | bytes], str]


def query_of(**given: object) -> str:
    return read_query(Namespace(**{"query": None, "query_file": None} | given))


def items_of(items: list[str] | None = None, items_file: str = "") -> list[str]:
    return read_texts(items, items_file, Columns(), "items").texts


@pytest.fixture
def file(tmp_path: Path) -> Write:
    def write(name: str, content: str | bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


def feed_stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_a_query_file_loses_only_its_last_line_break(file: Write) -> None:
    assert query_of(query_file=file("query.txt", "  one\n\ntwo \n\n")) == "  one\n\ntwo \n"


def test_a_query_may_come_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    feed_stdin(monkeypatch, "grüezi\n".encode())
    assert query_of(query="-") == "grüezi"


def test_every_line_of_a_file_is_an_item_with_its_spaces(file: Write) -> None:
    assert items_of(items_file=file("items.txt", " a \n\n\tb\u2028c\x0cd\n")) == [" a ", "", "\tb\u2028c\x0cd"]


def test_line_breaks_and_byte_order_marks_of_other_systems_are_no_content(file: Write) -> None:
    assert items_of(items_file=file("items.txt", b"\xef\xbb\xbfa\r\nb\r\n")) == ["a", "b"]


def test_items_may_come_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    feed_stdin(monkeypatch, b"a\nb")
    assert items_of(items_file="-") == ["a", "b"]


@pytest.mark.parametrize("name", ["items.txt", "items.csv", "items.jsonl"])
def test_an_empty_file_is_refused(file: Write, name: str) -> None:
    with pytest.raises(RequestError, match=rf"{re.escape(name)} h(olds no items|as the columns)"):
        items_of(items_file=file(name, ""))


def test_an_empty_query_is_refused(file: Write) -> None:
    with pytest.raises(RequestError, match=r"must not be empty; .*query\.txt is"):
        query_of(query_file=file("query.txt", "\n"))
    with pytest.raises(RequestError, match="must not be empty; --query is"):
        query_of(query="")


def test_jsonl_items_are_strings_or_objects_with_a_text(file: Write) -> None:
    content = '" a\\nb"\n\n{"text": "c", "id": 7}\n{"item": ""}\n'
    assert items_of(items_file=file("items.jsonl", content)) == [" a\nb", "c", ""]


@pytest.mark.parametrize("line", ["7", "null", "[1, 2]", "{}", '{"text": 1}', '{"text": "a", "item": "b"}'])
def test_another_jsonl_item_is_refused_with_its_line(file: Write, line: str) -> None:
    with pytest.raises(RequestError, match=r"items\.jsonl, line 3: a row must be a string"):
        items_of(items_file=file("items.jsonl", f'"a"\n\n{line}\n'))


def test_a_broken_jsonl_line_is_named(file: Write) -> None:
    with pytest.raises(RequestError, match=r"items\.jsonl, line 2: not JSON"):
        items_of(items_file=file("items.jsonl", '"a"\n{"text": \n'))


def test_requests_have_the_fields_of_a_request(file: Write) -> None:
    content = '{"query": [1, 2], "items": [[3]], "label_token_ids": [4], "apply_softmax": true}\n'
    (request,) = read_requests(file("requests.jsonl", content))
    assert (request.query, request.items, request.apply_softmax, request.mode) == ([1, 2], [[3]], True, "auto")


def test_an_unknown_field_of_a_request_is_refused_with_its_line(file: Write) -> None:
    with pytest.raises(RequestError, match=r"line 2: no such field: softmax; the fields are id, query, items, labels"):
        read_requests(file("requests.jsonl", '{"query": "a"}\n{"query": "a", "softmax": true}\n'))


@pytest.mark.parametrize(
    ("content", "message"), [("[]", "line 1: a request must be an object"), ("\n", "at least one")]
)
def test_what_is_no_request_is_refused(file: Write, content: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_requests(file("requests.jsonl", content))


def test_ids_of_requests_and_options_of_chats_are_read(file: Write) -> None:
    content = '{"id": "a-7", "messages": [], "items": [], "item_role": "assistant"}\n{"query": "q", "items": []}\n'
    named, plain = request_rows(file("requests.jsonl", content))
    assert isinstance(named, RequestRow)
    assert isinstance(plain, RequestRow)
    assert (named.id, plain.id) == ("a-7", None)
    assert named.where.endswith("requests.jsonl, line 1")
    assert named.request.chat is not None
    assert (named.request.chat.item_role, plain.request.chat) == ("assistant", None)


def test_requests_are_read_when_they_are_asked_for(file: Write) -> None:
    name = file("requests.jsonl", '{"query": "q"}\n')
    rows = request_rows(name)
    first = next(rows)
    assert isinstance(first, RequestRow)
    assert first.request.query == "q"
    Path(name).write_text('{"query": "q"}\n{"query": "later"}\n')
    later = next(rows)
    assert isinstance(later, RequestRow)
    assert later.request.query == "later"


def test_a_row_that_is_no_request_has_failed_and_the_next_is_read(file: Write) -> None:
    failed, sound = request_rows(file("requests.jsonl", 'broken\n{"query": "q"}\n'))
    assert isinstance(failed, FailedRow)
    assert isinstance(sound, RequestRow)
    assert (failed.code, failed.line, sound.line) == ("invalid_json", 1, 2)


def test_messages_are_a_list_or_an_object_with_options(file: Write) -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert read_messages(file("chat.json", json.dumps(messages))) == {"messages": messages, "chat": None}
    given = {"messages": messages, "item_role": "assistant", "chat_template_kwargs": {"enable_thinking": False}}
    chat = ChatOptions(item_role="assistant", template_kwargs={"enable_thinking": False})
    assert read_messages(file("chat.json", json.dumps(given))) == {"messages": messages, "chat": chat}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "must hold a list of messages with role and content, or an object with such a list"),
        ("7", "must hold a list of messages .* got int"),
        ('{"messages": "hi"}', "must hold a list of messages .* got str"),
        ('{"messages": [], "thinking": false}', "may hold messages, item_role, .* got thinking"),
        ("[", "not JSON"),
    ],
)
def test_other_files_of_messages_are_refused(file: Write, text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read_messages(file("chat.json", text))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(RequestError, match=r"cannot read nothing\.txt: No such file"):
        items_of(items_file="nothing.txt")


def test_a_file_that_is_no_text_is_refused(file: Write) -> None:
    with pytest.raises(RequestError, match=r"query\.txt must be UTF-8"):
        query_of(query_file=file("query.txt", b"\xff\xfe\x00"))


def test_an_argument_that_is_no_text_is_refused() -> None:
    with pytest.raises(RequestError, match="--items must be UTF-8"):
        items_of(items=["fine", b"\xff".decode(errors="surrogateescape")])
