"""Frames arrive as they were sent, through real sockets, and nothing but numbers and text can be in them."""

import asyncio
import socket
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.ipc import LENGTHS, Frame, FrameSocket, decode, encode, read_frame, write_frame

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
FIELDS = st.dictionaries(TEXTS, st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS, max_size=4)
ARRAYS = st.dictionaries(
    st.sampled_from("abc"),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=50).map(lambda ids: np.array(ids, np.int32))
    | st.lists(st.floats(width=32), max_size=50).map(lambda values: np.array(values, np.float32).reshape(-1, 1)),
)


def same(a: Frame, b: Frame) -> bool:
    return (a.kind, a.call, a.fields, a.arrays.keys()) == (b.kind, b.call, b.fields, b.arrays.keys()) and all(
        np.array_equal(x, b.arrays[name], equal_nan=x.dtype.kind == "f")
        and (x.dtype, x.shape) == (b.arrays[name].dtype, b.arrays[name].shape)
        for name, x in a.arrays.items()
    )


@settings(max_examples=50, deadline=None)
@given(FIELDS, ARRAYS, st.integers(0, 2**40))
def test_a_frame_arrives_as_it_was_sent(fields: dict[str, object], arrays: dict[str, np.ndarray], call: int) -> None:
    sent = Frame("score", call, fields, arrays)
    data = b"".join(bytes(buffer) for buffer in encode(sent))
    header_bytes, array_bytes = LENGTHS.unpack(data[: LENGTHS.size])
    header, body = data[LENGTHS.size :][:header_bytes], data[LENGTHS.size + header_bytes :]
    assert len(body) == array_bytes
    assert same(decode(header, body), sent)


def test_frames_of_any_size_cross_between_a_thread_and_a_loop() -> None:
    frames = [Frame("k", n, {"n": n}, {"a": np.arange(n, dtype=np.int32)}) for n in (0, 1, 1000, 3_000_000, 2)]

    async def front(ours: socket.socket) -> list[Frame]:
        reader, writer = await asyncio.open_connection(sock=ours)
        back = []
        for frame in frames:
            write_frame(writer, frame)
            await writer.drain()
            back.append(await read_frame(reader))
        writer.close()
        return back

    ours, theirs = socket.socketpair()

    def echo() -> None:
        end = FrameSocket(theirs)
        while (frame := end.read()) is not None:
            end.write(frame)

    thread = threading.Thread(target=echo)
    thread.start()
    back = asyncio.run(front(ours))
    thread.join(10)
    theirs.close()
    assert not thread.is_alive(), "a closed socket ends the reading"
    assert all(same(a, b) for a, b in zip(frames, back, strict=True))


def test_frames_of_several_threads_do_not_mingle() -> None:
    ours, theirs = socket.socketpair()
    end = FrameSocket(theirs)

    def write(number: int) -> None:
        for _ in range(50):
            end.write(Frame("k", number, {}, {"a": np.full(1000, number, np.int32)}))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    other = FrameSocket(ours)
    for _ in range(200):
        frame = other.read()
        assert frame is not None
        assert np.all(frame.arrays["a"] == frame.call)
    for thread in threads:
        thread.join()
    ours.close()
    theirs.close()


def test_a_stream_out_of_step_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(b"\xff" * LENGTHS.size)
    with pytest.raises(ConnectionError, match="out of step"):
        FrameSocket(theirs).read()
    ours.close()
    theirs.close()


def test_an_array_of_objects_cannot_be_read() -> None:
    header = b'{"kind": "k", "call": 0, "fields": {}, "arrays": [["a", "object", [1]]]}'
    with pytest.raises(ConnectionError, match="int32, float32"):
        decode(header, b"12345678")
