"""GPTQ checkpoints, of AutoGPTQ and GPTQModel: numbers packed along the input, in groups, with or without act-order.

X.qweight   I32 [in · bits / 32, out]
X.qzeros    I32 [groups, out · bits / 32]    less 1 in the format "gptq", as they are in "gptq_v2"
X.scales    F16 [groups, out]
X.g_idx     I32 [in]                         the group of each input; in order where it is missing
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from onepass.errors import BadCheckpoint
from onepass.loading.quantized.packed_bits import unpack, unpack_range
from onepass.loading.quantized.tensors import QuantizedTensor, Scales, checked_shape
from onepass.loading.safetensors import SafetensorsReader
from onepass.loading.tensor_reader import TensorInfo

FLOATS = ("F16", "BF16", "F32")
FORMATS = {"gptq": 1, "gptq_v2": 0}  # what is added to stored zero points


@dataclass(frozen=True)
class GptqMatrix:
    module: str
    shape: tuple[int, int]
    stored_names: tuple[str, ...]
    bits: int
    group: int
    zero_offset: int

    def scales(self, file: SafetensorsReader) -> Scales:
        scale = file.stored(f"{self.module}.scales").T.astype(np.float32)
        zeros = unpack(file.stored(f"{self.module}.qzeros"), self.bits)[:, : self.shape[0]]
        zeros = (zeros + np.uint8(self.zero_offset)) & np.uint8((1 << self.bits) - 1)
        groups = None
        if (name := f"{self.module}.g_idx") in self.stored_names:
            groups = np.asarray(file.stored(name))
            if groups.min() < 0 or groups.max() >= scale.shape[1]:
                raise BadCheckpoint(
                    f"{name} must name groups 0 to {scale.shape[1] - 1}; it has {groups.min()} to {groups.max()}"
                )
        return Scales(scale, zeros.T.astype(np.float32), 1, self.group, groups)

    def numbers(self, file: SafetensorsReader, rows: slice, columns: slice) -> np.ndarray:
        words = file.stored(f"{self.module}.qweight", (slice(None), rows))
        return unpack_range(words.T, self.bits, columns).astype(np.float32)


@dataclass(frozen=True)
class GptqScheme:
    bits: int
    group_size: int  # -1: one group
    zero_offset: int

    @property
    def description(self) -> str:
        return f"GPTQ, {self.bits} bits, " + (
            f"groups of {self.group_size}" if self.group_size > 0 else "one group per row"
        )

    def tensors(self, stored: Mapping[str, TensorInfo]) -> dict[str, QuantizedTensor]:
        modules = [name.removesuffix(".qweight") for name in stored if name.endswith(".qweight")]
        return {f"{module}.weight": self._matrix(stored, module) for module in modules}

    def _matrix(self, stored: Mapping[str, TensorInfo], module: str) -> GptqMatrix:
        info = stored[f"{module}.qweight"]
        if info.dtype != "I32" or len(info.shape) != 2 or info.shape[0] * 32 % self.bits:
            raise BadCheckpoint(f"{module}.qweight must be an I32 matrix; it is {list(info.shape)} in {info.dtype}")
        size_in, size_out = info.shape[0] * 32 // self.bits, info.shape[1]
        group = self.group_size if self.group_size > 0 else size_in
        groups = -(-size_in // group)
        checked_shape(stored, f"{module}.qzeros", (groups, -(-size_out * self.bits // 32)), ("I32",))
        checked_shape(stored, f"{module}.scales", (groups, size_out), FLOATS)
        parts = ["qweight", "qzeros", "scales"]
        if f"{module}.g_idx" in stored:
            checked_shape(stored, f"{module}.g_idx", (size_in,), ("I32",))
            parts.append("g_idx")
        names = tuple(f"{module}.{part}" for part in parts)
        return GptqMatrix(module, (size_out, size_in), names, self.bits, group, self.zero_offset)
