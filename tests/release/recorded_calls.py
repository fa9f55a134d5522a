"""FFI calls of our kernels, recorded on this machine and written for `ffi_driver.cc`, which repeats them elsewhere."""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

DTYPES = {"int8": 2, "int32": 4, "uint8": 6, "uint32": 8, "float32": 11, "bfloat16": 16}  # XLA_FFI_DataType


@dataclass(frozen=True)
class FfiCall:
    target: str
    arguments: tuple[np.ndarray, ...]
    results: tuple[np.ndarray, ...]
    attributes: dict[str, float]

    def to_bytes(self) -> bytes:
        parts = [_text(self.target), _number(len(self.arguments))]
        parts += [_description(array) + array.tobytes() for array in self.arguments]
        parts += [_number(len(self.results)), *map(_description, self.results), _number(len(self.attributes))]
        parts += [_text(name) + struct.pack("<f", value) for name, value in self.attributes.items()]
        return b"".join(parts)


@contextmanager
def recorded(monkeypatch: Any) -> Iterator[list[FfiCall]]:
    """Every call while the context lasts; what calls is to run op by op, under `jax.disable_jit`."""
    calls: list[FfiCall] = []
    real = jax.ffi.ffi_call

    def record(target: str, shapes: Any, **options: Any) -> Callable[..., Any]:
        def call(*arguments: Any, **attributes: Any) -> Any:
            given = tuple(np.array(each) for each in arguments)  # before the call, which may write into them
            results = real(target, shapes, **options)(*arguments, **attributes)
            values = tuple(np.array(each) for each in jax.tree.leaves(results))
            calls.append(FfiCall(target, given, values, {name: float(v) for name, v in attributes.items()}))
            return results

        return call

    with monkeypatch.context() as patch, jax.disable_jit():
        patch.setattr(jax.ffi, "ffi_call", record)
        yield calls


def write_calls(calls: list[FfiCall]) -> bytes:
    return _number(len(calls)) + b"".join(call.to_bytes() for call in calls)


def read_results(calls: list[FfiCall], data: bytes) -> list[tuple[np.ndarray, ...]]:
    results, at = [], 0
    for call in calls:
        arrays = []
        for like in call.results:
            arrays.append(np.frombuffer(data[at : at + like.nbytes], like.dtype).reshape(like.shape))
            at += like.nbytes
        results.append(tuple(arrays))
    assert at == len(data)
    return results


def _number(value: int) -> bytes:
    return struct.pack("<q", value)


def _text(value: str) -> bytes:
    return _number(len(value)) + value.encode()


def _description(array: np.ndarray) -> bytes:
    sizes = b"".join(map(_number, array.shape))
    return _number(DTYPES[array.dtype.name]) + _number(array.ndim) + sizes + _number(array.nbytes)
