"""A quantised safetensors folder as a `TensorReader`: matrices are dequantised when they are read.

A matrix is computed some rows at a time, so that besides the result only a few megabytes are held. What the stored
tensors mean is said by a `QuantizationScheme`; all other tensors are read as they are.
"""

from collections.abc import Mapping

import numpy as np

from onepass.loading.quantized.tensors import QuantizationScheme
from onepass.loading.safetensors import SafetensorsReader
from onepass.loading.tensor_reader import TensorInfo

ROWS_ELEMENTS = 1 << 20  # dequantised at once


class DequantizingReader:
    def __init__(self, file: SafetensorsReader, scheme: QuantizationScheme) -> None:
        self._file = file
        stored = file.tensors()
        self._quantized = scheme.tensors(stored)
        parts = {name for tensor in self._quantized.values() for name in tensor.stored_names}
        self._plain = {name: info for name, info in stored.items() if name not in parts}

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._plain | {name: TensorInfo(tensor.shape, "F32") for name, tensor in self._quantized.items()}

    def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        tensor = self._quantized.get(name)
        if tensor is None:
            return self._file.read(name, index)
        every = (*index, *[slice(None)] * (2 - len(index)))
        rows, columns = (slice(*part.indices(size)[:2]) for part, size in zip(every, tensor.shape, strict=True))
        scales = tensor.scales(self._file)
        width = columns.stop - columns.start
        out = np.empty((rows.stop - rows.start, width), np.float32)
        step = max(1, ROWS_ELEMENTS // max(1, width))
        for start in range(rows.start, rows.stop, step):
            part = slice(start, min(start + step, rows.stop))
            numbers = tensor.numbers(self._file, part, columns)
            out[part.start - rows.start : part.stop - rows.start] = scales.apply(numbers, part, columns)
        return out

    def read_blocks(self, name: str) -> None:
        """No tensor here is in blocks of 32."""

    def close(self) -> None:
        self._file.close()
