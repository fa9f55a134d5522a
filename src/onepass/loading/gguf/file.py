"""A GGUF file (version 2 or 3) opened by memory map: its metadata, its tensors' shapes, and one tensor at a time.

The header is parsed by `header`. The package `gguf` defines what quantised blocks mean; `kernels.cpu.dequantize` widens
them, or the package itself where there is no C++ compiler. What the names and keys mean for a decoder is `reader` and
`config`; the vocabulary is `tokenizer`.
"""

import mmap
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Self

import ml_dtypes
import numpy as np

from onepass.errors import BadCheckpoint, ModelNotFound
from onepass.kernels.cpu.dequantize import GROUP, Dequantize, Split, dequantizer, splitter
from onepass.loading.gguf.header import BLOCKS, Header, num_bytes
from onepass.loading.tensor_reader import Blocks, TensorInfo

PLAIN_DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True)
class GgufFile:
    """Metadata as Python values; tensor shapes in NumPy order ([out, in]). Arrays read are views where they can be."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    _offsets: dict[str, int]
    _bytes: memoryview

    @classmethod
    def open(cls, path: str | Path) -> Self:
        path = Path(path)
        if not path.is_file():
            raise ModelNotFound(f"no GGUF file at {path}")
        if path.stat().st_size == 0:
            raise BadCheckpoint(f"{path.name} must be a GGUF file; it is empty")
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        header = Header(path.name, content)
        metadata, tensors, offsets = header.parse()
        return cls(path, metadata, tensors, offsets, content)

    def read(self, name: str, rows: slice = slice(None)) -> np.ndarray:
        """Quantised tensors as float32; F32, F16 and BF16 as they are stored, read-only and without a copy. `rows` are
        those of the first axis that are wanted: no others are read."""
        if name not in self.tensors:
            raise BadCheckpoint(f"{self.path.name} has no tensor {name!r}; it has {len(self.tensors)} others")
        info, start = self.tensors[name], self._offsets[name]
        raw = np.frombuffer(self._bytes[start : start + num_bytes(info)], np.uint8)
        if info.dtype in PLAIN_DTYPES:
            return raw.view(PLAIN_DTYPES[info.dtype]).reshape(info.shape)[rows]
        wanted = raw.reshape(*info.shape[:-1], -1)[rows]
        return self._widened(wanted, info.dtype).reshape(*wanted.shape[:-1], info.shape[-1])

    def read_blocks(self, name: str) -> Blocks | None:
        """A quantised tensor without widening it; None of the others, and where our C++ cannot be built."""
        info, start = self.tensors[name], self._offsets[name]
        split = self._split
        if info.dtype in PLAIN_DTYPES or split is None:
            return None
        kind = BLOCKS[info.dtype]
        raw = np.frombuffer(self._bytes[start : start + num_bytes(info)], np.uint8).reshape(-1, kind.bytes)
        numbers = np.empty(info.shape, np.int8)
        groups = (*info.shape[:-1], info.shape[-1] // GROUP)
        scale, offset = np.empty(groups, np.float32), np.empty(groups, np.float32)
        split(raw, kind.type_number, numbers, scale, offset)
        return Blocks(numbers, scale, offset if offset.any() else None)

    def stored_as(self, name: str) -> tuple[int, int]:
        """GGML's number of a tensor's type, and the bytes of a row."""
        info = self.tensors[name]
        kind = BLOCKS[info.dtype]
        return kind.type_number, info.shape[-1] // kind.numbers * kind.bytes

    def read_stored(self, name: str) -> np.ndarray:
        """A tensor's bytes, [rows, bytes of a row]: a view."""
        info, start = self.tensors[name], self._offsets[name]
        return np.frombuffer(self._bytes[start : start + num_bytes(info)], np.uint8).reshape(prod(info.shape[:-1]), -1)

    def forget(self, name: str) -> None:
        """Whole pages of a tensor that was read count no longer as this process's memory."""
        start, end = self._offsets[name], self._offsets[name] + num_bytes(self.tensors[name])
        first, last = -(-start // mmap.PAGESIZE), end // mmap.PAGESIZE
        memory = self._bytes.obj
        if last > first and isinstance(memory, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            memory.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)

    @cached_property
    def _split(self) -> Split | None:
        return splitter()

    @cached_property
    def _dequantize(self) -> Dequantize | None:
        return dequantizer()

    def _widened(self, raw: np.ndarray, kind: str) -> np.ndarray:
        block, dequantize = BLOCKS[kind], self._dequantize
        if dequantize is None:
            from gguf import GGMLQuantizationType
            from gguf.quants import dequantize as by_numpy

            return by_numpy(raw, GGMLQuantizationType(block.type_number))
        blocks = np.ascontiguousarray(raw).reshape(-1, block.bytes)
        out = np.empty(len(blocks) * block.numbers, np.float32)
        dequantize(blocks, block.type_number, out)
        return out

    def close(self) -> None:
        """Lets go of the map; arrays that `read` gave keep their part of it alive."""
        self._bytes.release()
