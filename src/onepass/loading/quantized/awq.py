"""AWQ checkpoints of the packing "gemm": 4 bits along the output, eight columns of a word in an order of their own.

X.qweight   I32 [in, out / 8]        bits 0-3 hold column 0, then columns 2, 4, 6, 1, 3, 5, 7
X.qzeros    I32 [in / group, out / 8]
X.scales    F16 [in / group, out]
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from onepass.errors import BadCheckpoint
from onepass.loading.quantized.packed_bits import unpack
from onepass.loading.quantized.tensors import QuantizedTensor, Scales, checked_shape
from onepass.loading.safetensors import SafetensorsReader
from onepass.loading.tensor_reader import TensorInfo

FLOATS = ("F16", "BF16", "F32")
WORD = 8  # columns
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of columns 0 to 7 in a word


def _columns(words: np.ndarray) -> np.ndarray:
    """[..., words] as [..., words · 8], in the matrix's order."""
    placed = unpack(words, 4).reshape(*words.shape, WORD)
    return placed[..., PLACES].reshape(*words.shape[:-1], -1)


@dataclass(frozen=True)
class AwqMatrix:
    module: str
    shape: tuple[int, int]
    stored_names: tuple[str, ...]
    group: int

    def scales(self, file: SafetensorsReader) -> Scales:
        scale = file.stored(f"{self.module}.scales").T.astype(np.float32)
        zeros = _columns(file.stored(f"{self.module}.qzeros")).T.astype(np.float32)
        return Scales(scale, zeros, 1, self.group)

    def numbers(self, file: SafetensorsReader, rows: slice, columns: slice) -> np.ndarray:
        first = rows.start // WORD
        words = file.stored(f"{self.module}.qweight", (columns, slice(first, -(-rows.stop // WORD))))
        wanted = _columns(words)[:, rows.start - WORD * first : rows.stop - WORD * first]
        return np.ascontiguousarray(wanted.T).astype(np.float32)


@dataclass(frozen=True)
class AwqScheme:
    group_size: int  # -1: one group

    @property
    def description(self) -> str:
        return "AWQ, 4 bits, " + (f"groups of {self.group_size}" if self.group_size > 0 else "one group per row")

    def tensors(self, stored: Mapping[str, TensorInfo]) -> dict[str, QuantizedTensor]:
        modules = [name.removesuffix(".qweight") for name in stored if name.endswith(".qweight")]
        return {f"{module}.weight": self._matrix(stored, module) for module in modules}

    def _matrix(self, stored: Mapping[str, TensorInfo], module: str) -> AwqMatrix:
        info = stored[f"{module}.qweight"]
        if info.dtype != "I32" or len(info.shape) != 2:
            raise BadCheckpoint(f"{module}.qweight must be an I32 matrix; it is {list(info.shape)} in {info.dtype}")
        size_in, size_out = info.shape[0], info.shape[1] * WORD
        group = self.group_size if self.group_size > 0 else size_in
        groups = -(-size_in // group)
        checked_shape(stored, f"{module}.qzeros", (groups, info.shape[1]), ("I32",))
        checked_shape(stored, f"{module}.scales", (groups, size_out), FLOATS)
        names = tuple(f"{module}.{part}" for part in ("qweight", "qzeros", "scales"))
        return AwqMatrix(module, (size_out, size_in), names, group)
