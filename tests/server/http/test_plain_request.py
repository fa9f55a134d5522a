"""Plain requests are read without h11: exactly as h11 would read them, or not at all."""

import h11
from hypothesis import given
from hypothesis import strategies as st

from onepass.server.http.plain_request import plain_head

LINES = [
    b"POST /v1/score HTTP/1.1",
    b"Host: localhost:8000",
    b"Accept: */*",
    b"User-Agent: a client, (of) no name",
    b"Content-Type: application/json; charset=utf-8",
    b"Content-Length: 7",
    b"Connection: keep-alive",
]
MORE = [
    b"Host: twice", b"Content-Length: 7", b"Content-Length: 8", b"Transfer-Encoding: chunked", b"Expect: 100-continue",
    b"Upgrade: websocket", b"Connection: close", b"Connection: upgrade", b" folded", b"No-Colon", b"X-Empty:",
    b"X-Tab:\tvalue", b"X-Space : value", b"X-Two: a  b", b"X-End: a ", b": value", b"X-8bit: \xe4",
    b"Content-Length: +7",
]  # fmt: skip


def head_of(lines: list[bytes]) -> bytes:
    return b"\r\n".join(lines) + b"\r\n\r\n"


def test_a_usual_request_is_plain() -> None:
    head = plain_head(head_of(LINES) + b'{"a":1}')
    assert head is not None
    assert (head.path, head.body_bytes, head.size) == (b"/v1/score", 7, len(head_of(LINES)))
    assert head.headers[:2] == [(b"host", b"localhost:8000"), (b"accept", b"*/*")]


def test_half_a_head_is_not_plain() -> None:
    assert all(plain_head(head_of(LINES)[:size]) is None for size in range(len(head_of(LINES))))


@given(
    st.lists(st.sampled_from(LINES[1:] + MORE), max_size=8),
    st.integers(0, 200),
    st.binary(max_size=2) | st.sampled_from([b"\r", b"\n", b"\r\n", b" ", b":", b"\x00", b"%41", b"?q=1"]),
)
def test_what_is_plain_is_read_as_h11_reads_it(more: list[bytes], place: int, inserted: bytes) -> None:
    data = head_of([*LINES[:2], *more, *LINES[5:6]])
    data = data[:place] + inserted + data[place:]
    head = plain_head(data)
    if head is None:
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data[: head.size])
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    assert (request.method, request.target, request.http_version) == (b"POST", head.path, b"1.1")
    assert list(request.headers) == head.headers
    connection.receive_data(b"x" * head.body_bytes)
    assert head.body_bytes == 0 or connection.next_event() == h11.Data(b"x" * head.body_bytes)
    assert isinstance(connection.next_event(), h11.EndOfMessage)
    assert connection.their_state is h11.DONE  # and not MUST_CLOSE: the connection is kept
    assert not connection.they_are_waiting_for_100_continue
