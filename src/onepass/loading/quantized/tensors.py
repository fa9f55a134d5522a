"""What a quantised matrix is, whatever its format: small numbers, and a scale (and zero point) for each block of them.

    weight[row, column] = (number[row, column] - zero[a, b]) · scale[a, b]
    a = row // block_rows        b = groups[column], or column // block_columns

Computed in float32, where every product of a number of up to 8 bits and a scale of 16 bits is exact.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from onepass.errors import BadCheckpoint
from onepass.loading.safetensors import SafetensorsReader
from onepass.loading.tensor_reader import TensorInfo


@dataclass(frozen=True)
class Scales:
    """`scale` and `zero` are float32 [blocks of rows, blocks of columns]."""

    scale: np.ndarray
    zero: np.ndarray | None
    block_rows: int
    block_columns: int
    groups: np.ndarray | None = None  # of each column, where they are not in order

    def apply(self, numbers: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        """The weights of `numbers`, which are those at `rows` and `columns`; in place."""
        a = np.arange(rows.start, rows.stop) // self.block_rows
        every = np.arange(columns.start, columns.stop)
        b = every // self.block_columns if self.groups is None else self.groups[every]
        if self.zero is not None:
            numbers -= np.take(self.zero[a], b, axis=1)
        numbers *= np.take(self.scale[a], b, axis=1)
        return numbers


class QuantizedTensor(Protocol):
    """One matrix [out, in]."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def stored_names(self) -> tuple[str, ...]:
        """The tensors of the file that it is made of."""
        ...

    def scales(self, file: SafetensorsReader) -> Scales: ...

    def numbers(self, file: SafetensorsReader, rows: slice, columns: slice) -> np.ndarray:
        """As float32, without scale and zero point."""
        ...


class QuantizationScheme(Protocol):
    """What a `quantization_config` says."""

    @property
    def description(self) -> str: ...

    def tensors(self, stored: Mapping[str, TensorInfo]) -> dict[str, QuantizedTensor]:
        """The quantised matrices of a file by the names that they would have without quantisation."""
        ...


def checked_shape(
    stored: Mapping[str, TensorInfo], name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]
) -> TensorInfo:
    """The entry of a tensor that must be there with this shape and one of these dtypes."""
    info = stored.get(name)
    if info is None:
        raise BadCheckpoint(f"the quantised checkpoint must have {name} {list(shape)}; it is missing")
    if info.shape != shape or info.dtype not in dtypes:
        raise BadCheckpoint(
            f"{name} must be {list(shape)} in {' or '.join(dtypes)}; it is {list(info.shape)} in {info.dtype}"
        )
    return info
