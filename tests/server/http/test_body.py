"""Bodies: JSON that is strict, sizes and encodings that are bounded, content types that are JSON."""

import asyncio
import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import pytest
from backports import zstd
from starlette.datastructures import Headers
from starlette.testclient import TestClient
from starlette.types import Message

from onepass.errors import Overloaded, RequestError
from onepass.server.http.body import read_body
from onepass.server.http.body_limits import BodyBudget, Limits
from onepass.server.http.decompression import gunzip, unzstd
from onepass.server.http.errors import HttpError
from onepass.server.http.json_object import parse_object
from server.asking import SCORE, check_error
from server.in_process import InProcess

EMPTY = json.dumps({**SCORE, "items": []}).encode()
SMALL = Limits(max_body_bytes=1000, max_decompressed_bytes=2000)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1, 2]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"query": "\xff"}',
        b'{"query": NaN}',
        b'{"query": Infinity}',
        b'{"query": 1e999}',
        b'{"query": "\\ud800"}',
        b'{"query": "\\udc00 is low"}',
        b'{"query": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"a": 1, "a": 2}',
        b'{"query": "x", "items": [], "query": "y"}',
        b'{"query": "x"} trailing',
        b"{'query': 'x'}",
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_not_one_json_object_is_refused(client: TestClient, body: bytes) -> None:
    answer = client.post("/v1/score", content=body, headers={"content-type": "application/json"})
    check_error(answer, 400, "invalid_json")


def test_a_name_may_occur_again_as_a_value_or_in_another_object() -> None:
    body = b'{"query": "query", "documents": [{"text": "query"}, {"text": "documents"}]}'
    assert parse_object(body)["query"] == "query"
    with pytest.raises(RequestError, match="'text' is there twice"):
        parse_object(b'{"text": "x", "documents": [{"text": "a", "text": "b"}]}')


def test_a_name_with_blanks_before_its_colon_counts() -> None:
    for blanks in (b" ", b"\n" * 3, b" " * 500):
        with pytest.raises(RequestError, match="'query' is there twice"):
            parse_object(b'{"query": 1, "query"' + blanks + b": 2}")
    assert parse_object(b'{"items": ["items", "items"]}') == {"items": ["items", "items"]}


def test_a_name_is_found_twice_in_bodies_of_any_size() -> None:
    for padding in ("", "x" * 200_000, '"' * 5_000 + "x" * 200_000, '"' * 20_000):
        sound = json.dumps({"padding": padding, "query": 1, "items": ["query", "query"]}).encode()
        assert parse_object(sound)["query"] == 1
        for twice in (sound[:-1] + b', "query": 2}', b'{"query": 2, ' + sound[1:]):
            with pytest.raises(RequestError, match="'query' is there twice"):
                parse_object(twice)


def test_too_many_items_are_refused_and_token_ids_are_not() -> None:
    limits = Limits(max_entries=10)
    with pytest.raises(RequestError, match="items must have at most 10 entries; got 11"):
        parse_object(json.dumps({"items": ["a"] * 11}).encode(), limits)
    assert len(parse_object(json.dumps({"query": [1] * 11, "items": ["a"] * 10}).encode(), limits)["query"]) == 11


def test_a_body_counts_as_long_as_its_request_is_answered(
    client_of: Callable[..., TestClient], service: InProcess
) -> None:
    """Four of the largest bodies at a time, not four being read at a time."""
    client = client_of(limits=Limits(max_body_bytes=300))
    service.hold = True
    with ThreadPoolExecutor(24) as threads:
        waiting = [threads.submit(client.post, "/v1/score", json=SCORE) for _ in range(24)]
        done, _ = wait(waiting, 60, return_when=FIRST_COMPLETED)
        service.hold = False
        check_error(done.pop().result(), 429, "overloaded")
        assert {future.result().status_code for future in waiting} == {200, 429}


def test_messages_about_json_have_no_python_in_them(client: TestClient) -> None:
    for body, words in ((b"null", "got null"), (b"[true]", "got [true]"), ('{"a": 1}'.encode("utf-16"), "UTF-8")):
        message = check_error(client.post("/v1/score", content=body), 400, "invalid_json")["message"]
        assert words in message
        assert "str" not in message


def test_a_body_of_countless_names_costs_no_more_than_its_size(client: TestClient) -> None:
    body = {f"name{i}": i for i in range(100_000)}
    error = check_error(client.post("/v1/score", json=body), 400, "unknown_field", "name0")
    assert len(error["message"]) < 2000


@pytest.mark.parametrize("content_type", [None, "application/json", "Application/JSON; charset=UTF-8", "text/json"])
def test_json_is_taken_under_its_names_and_without_one(client: TestClient, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    assert client.post("/v1/score", content=EMPTY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "text/plain"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-encoding": "br"},
        {"content-encoding": "gzip, zstd"},
    ],
)
def test_other_types_and_encodings_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    check_error(client.post("/v1/score", content=EMPTY, headers=headers), 415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("zstd", zstd.compress), ("identity", bytes)],
)
def test_a_compressed_body_is_the_same_request(
    client: TestClient, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    answer = client.post("/v1/score", content=pack(EMPTY), headers={"content-encoding": encoding})
    assert answer.json()["scores"] == []


def test_a_body_of_several_members_is_put_together() -> None:
    assert gunzip(gzip.compress(b"one ") + gzip.compress(b"two"), 100) == b"one two"
    assert unzstd(zstd.compress(b"one ") + zstd.compress(b"two"), 100) == b"one two"


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("damage", [b"nonsense", None])
def test_a_damaged_body_is_the_clients_mistake(client: TestClient, encoding: str, damage: bytes | None) -> None:
    pack = gzip.compress if encoding == "gzip" else zstd.compress
    body = pack(EMPTY)[:-5] if damage is None else damage
    check_error(client.post("/v1/score", content=body, headers={"content-encoding": encoding}), 400, "invalid_encoding")


def test_a_large_body_is_refused_with_the_limit(client_of: Callable[..., TestClient]) -> None:
    small = client_of(limits=SMALL)
    error = check_error(small.post("/v1/score", content=b" " * 1001), 413, "body_too_large")
    assert "1,000 bytes" in error["message"]
    chunks = small.post("/v1/score", content=(b" " * 400 for _ in range(3)))  # no content-length
    check_error(chunks, 413, "body_too_large")
    assert small.post("/v1/score", content=EMPTY).status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_decompression_bomb_is_refused(client_of: Callable[..., TestClient], encoding: str) -> None:
    pack = gzip.compress if encoding == "gzip" else zstd.compress
    bomb = pack(EMPTY + b" " * 100_000)
    assert len(bomb) < 1000
    answer = client_of(limits=SMALL).post("/v1/score", content=bomb, headers={"content-encoding": encoding})
    assert "2,000 bytes" in check_error(answer, 413, "body_too_large")["message"]


def test_a_bomb_takes_no_more_memory_than_the_limit() -> None:
    many = zlib.compressobj(wbits=31)
    bombs = [many.compress(bytes(50 << 20)) + many.flush(), zstd.compress(bytes(50 << 20))]
    for unpack, bomb in zip((gunzip, unzstd), bombs, strict=True):
        tracemalloc.start()
        with pytest.raises(HttpError):
            unpack(bomb, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
        tracemalloc.stop()


def test_a_huge_zstd_window_is_refused() -> None:
    wide = {zstd.CompressionParameter.window_log: 27}
    unknown_size = zstd.ZstdCompressor(options=wide)
    body = unknown_size.compress(b"x" * 1000) + unknown_size.flush()
    with pytest.raises(RequestError, match="zstd"):
        unzstd(body, 1 << 20)


def test_large_numbers_are_wrong_values_not_wrong_json(client: TestClient) -> None:
    for number in ("1" + "0" * 30, "1" + "0" * 300, "-1" + "0" * 30, "1e300"):
        body = '{"query": "x", "items": ["y"], "label_token_ids": [' + number + "]}"
        check_error(client.post("/v1/score", content=body.encode()), 400)


@pytest.mark.parametrize("path", ["/v1/score", "/live", "/nothing"])
def test_a_request_with_two_lengths_is_refused_and_its_connection_ends(client: TestClient, path: str) -> None:
    """One length for us and another for a proxy before us: what lies between them would be somebody's request."""
    both = {"Transfer-Encoding": "chunked", "Content-Length": str(len(EMPTY))}
    answer = client.post(path, content=EMPTY, headers=both)
    check_error(answer, 400, "ambiguous_framing")
    assert answer.headers["connection"] == "close"


def test_chunks_alone_are_a_length(client: TestClient) -> None:
    answer = client.post("/v1/score", content=iter([EMPTY[:9], EMPTY[9:]]))
    assert answer.status_code == 200


def test_other_requests_go_on_while_a_body_is_decompressed() -> None:
    """A few kilobytes may become half a second of work."""
    body = zstd.compress(b" " * (60 << 20) + b"{}")
    assert len(body) < 10_000

    async def turns_of_the_loop() -> int:
        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        room = BodyBudget(Limits())
        reading = asyncio.create_task(
            read_body(Headers({"content-encoding": "zstd"}), receive, Limits(), room, lambda _: None)
        )
        turns = 0
        while not reading.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert len(await reading) == (60 << 20) + 2
        return turns

    assert asyncio.run(turns_of_the_loop()) > 5


def test_bodies_of_all_requests_together_are_bounded() -> None:
    room = BodyBudget(Limits(max_body_bytes=100))
    with room.share() as take, room.share() as other:
        take(300)
        with pytest.raises(Overloaded, match="have 300 bytes"):
            other(101)
        other(100)
        assert room.held == 400
    assert room.held == 0
