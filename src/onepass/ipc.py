"""Frames between processes of ours: a JSON header and raw arrays over one stream socket. No JAX.

    ┌──────────────┬──────────────┬─────────────┬────────────────────────────┐
    │ header bytes │ array bytes  │ header JSON │ arrays, one after another  │
    │ uint32       │ uint64       │             │ as the header lists them   │
    └──────────────┴──────────────┴─────────────┴────────────────────────────┘

Nothing is pickled: a frame can hold numbers and text only. What frames mean is `server.engines.protocol` between the
server's front and an engine process, and `engine.multihost.leader` between the processes that share a model.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import orjson

LENGTHS = struct.Struct("<IQ")
MOST_HEADER_BYTES = 64 << 20
MOST_ARRAY_BYTES = 16 << 30
DTYPES = {np.dtype(name): name for name in ("int32", "float32")}  # numpy makes a dtype's name anew each time
NAMES = {name: dtype for dtype, name in DTYPES.items()}
SMALL_BYTES = 1 << 16  # a frame up to here is copied into one buffer, which is sent by one call


@dataclass(frozen=True)
class Frame:
    """`kind` says what it is, `call` which call it belongs to (0: none)."""

    kind: str
    call: int = 0
    fields: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def encode(frame: Frame) -> list[bytes | memoryview]:
    """The frame as buffers to be written one after another: one if it is small, else without copying its arrays."""
    arrays = [np.ascontiguousarray(array) for array in frame.arrays.values()]
    listed = [
        (name, DTYPES.get(array.dtype) or array.dtype.name, array.shape)
        for name, array in zip(frame.arrays, arrays, strict=True)
    ]
    header = orjson.dumps({"kind": frame.kind, "call": frame.call, "fields": frame.fields, "arrays": listed})
    size = sum(array.nbytes for array in arrays)
    head = LENGTHS.pack(len(header), size)
    if size <= SMALL_BYTES:
        return [b"".join((head, header, *(array.tobytes() for array in arrays)))]
    flat = [memoryview(array.reshape(-1).view(np.uint8)) for array in arrays if array.nbytes]
    return [head, header, *flat]


def lengths(head: bytes) -> tuple[int, int]:
    header_bytes, array_bytes = LENGTHS.unpack(head)
    if header_bytes > MOST_HEADER_BYTES or array_bytes > MOST_ARRAY_BYTES:
        raise ConnectionError(f"a frame of {header_bytes:,} + {array_bytes:,} bytes: the stream is out of step")
    return header_bytes, array_bytes


def decode(header: bytes, body: bytes | bytearray) -> Frame:
    envelope = orjson.loads(header)
    arrays, at = {}, 0
    for name, dtype, shape in envelope["arrays"]:
        if dtype not in NAMES:
            raise ConnectionError(f"arrays must be of {', '.join(NAMES)}; got {dtype}")
        array = np.frombuffer(body, NAMES[dtype], prod(shape), at)
        arrays[name] = array if len(shape) == 1 else array.reshape(shape)
        at += array.nbytes
    return Frame(envelope["kind"], envelope["call"], envelope["fields"], arrays)


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """The next frame; asyncio.IncompleteReadError when the other side has gone."""
    header_bytes, array_bytes = lengths(await reader.readexactly(LENGTHS.size))
    header = await reader.readexactly(header_bytes)
    return decode(header, await reader.readexactly(array_bytes) if array_bytes else b"")


def write_frame(writer: asyncio.StreamWriter, frame: Frame) -> None:
    buffers = encode(frame)
    if len(buffers) == 1:
        writer.write(buffers[0])  # `writelines` has a list and a system call of its own to prepare
    else:
        writer.writelines(buffers)


class FrameSocket:
    """A blocking end, written to by several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._writing = threading.Lock()

    def read(self) -> Frame | None:
        """The next frame, or None when the other side has gone."""
        head = self._exactly(LENGTHS.size)
        if head is None:
            return None
        header_bytes, array_bytes = lengths(bytes(head))
        header, body = self._exactly(header_bytes), self._exactly(array_bytes)
        return None if header is None or body is None else decode(bytes(header), body)

    def write(self, frame: Frame) -> None:
        """Raises OSError when the other side has gone."""
        buffers: Iterable[bytes | memoryview] = encode(frame)
        with self._writing:
            for buffer in buffers:
                self._socket.sendall(buffer)

    def close(self) -> None:
        """Also wakes a thread that reads."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exactly(self, size: int) -> bytearray | None:
        out = bytearray(size)
        view, at = memoryview(out), 0
        while at < size:
            got = self._socket.recv_into(view[at:])
            if not got:
                return None
            at += got
        return out
