"""Matrices in 8 bits with scales: FP8 (e4m3) as DeepSeek and Qwen publish it, FP8 and int8 of compressed-tensors.

X.weight               F8_E4M3 or I8 [out, in]
X.weight_scale_inv     DeepSeek's name; it multiplies, in spite of it
X.weight_scale         [1], [out, 1], [out / rows, in / columns] or [out, in / group]
X.weight_zero_point    the scale's shape, of asymmetric int8
X.input_scale          of activations in 8 bits: not used, activations stay as they are
"""

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from onepass.errors import BadCheckpoint
from onepass.loading.quantized.tensors import QuantizedTensor, Scales
from onepass.loading.safetensors import SafetensorsReader
from onepass.loading.tensor_reader import TensorInfo

EIGHT_BITS = ("F8_E4M3", "I8")
FLOATS = ("F32", "F16", "BF16")
ACTIVATION_SCALES = ("input_scale", "output_scale", "activation_scale")
E4M3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)


@dataclass(frozen=True)
class ScaledMatrix:
    module: str
    shape: tuple[int, int]
    scale_name: str
    stored_names: tuple[str, ...]
    block: tuple[int, int]  # rows and columns with one scale

    def scales(self, file: SafetensorsReader) -> Scales:
        grid = tuple(-(-size // block) for size, block in zip(self.shape, self.block, strict=True))
        scale = file.stored(f"{self.module}.{self.scale_name}").astype(np.float32).reshape(grid)
        zero = None
        if (name := f"{self.module}.weight_zero_point") in self.stored_names:
            zero = file.stored(name).astype(np.float32).reshape(grid)
        return Scales(scale, zero, *self.block)

    def numbers(self, file: SafetensorsReader, rows: slice, columns: slice) -> np.ndarray:
        stored = file.stored(f"{self.module}.weight", (rows, columns))
        if stored.dtype == np.int8:
            return stored.astype(np.float32)
        return np.take(E4M3, stored.view(np.uint8))


def scaled_matrices(
    stored: Mapping[str, TensorInfo], scale_name: str, blocks: Mapping[str, tuple[int, int]] | tuple[int, int] | None
) -> dict[str, QuantizedTensor]:
    """Those of a file. `blocks` is what shares a scale, of all matrices or by module; None: as the scale's shape says,
    the whole matrix or a row."""
    found: dict[str, QuantizedTensor] = {}
    for name, info in stored.items():
        if info.dtype not in EIGHT_BITS or not name.endswith(".weight"):
            continue
        module = name.removesuffix(".weight")
        if len(info.shape) != 2:
            raise BadCheckpoint(f"{name} in {info.dtype} must be a matrix; it is {list(info.shape)}")
        shape = (info.shape[0], info.shape[1])
        block = blocks.get(module) if isinstance(blocks, Mapping) else blocks
        block = block or _block_of(stored, module, scale_name, shape)
        _check_scale(stored, module, scale_name, shape, block)
        parts = [f"{module}.{part}" for part in ("weight", scale_name, "weight_zero_point", *ACTIVATION_SCALES)]
        used = tuple(part for part in parts if part in stored)
        found[name] = ScaledMatrix(module, shape, scale_name, used, block)
    return found


def _block_of(
    stored: Mapping[str, TensorInfo], module: str, scale_name: str, shape: tuple[int, int]
) -> tuple[int, int]:
    info = stored.get(f"{module}.{scale_name}")
    count = 0 if info is None else int(np.prod(info.shape, dtype=np.int64))
    return (1, shape[1]) if count == shape[0] > 1 else shape


def _check_scale(
    stored: Mapping[str, TensorInfo], module: str, scale_name: str, shape: tuple[int, int], block: tuple[int, int]
) -> None:
    grid = [-(-size // part) for size, part in zip(shape, block, strict=True)]
    info = stored.get(f"{module}.{scale_name}")
    got = "missing" if info is None else f"{list(info.shape)} in {info.dtype}"
    if info is None or info.dtype not in FLOATS or int(np.prod(info.shape, dtype=np.int64)) != grid[0] * grid[1]:
        raise BadCheckpoint(
            f"{module}.{scale_name} must hold {grid} scales for a matrix {list(shape)} in blocks of {list(block)}; "
            f"it is {got}"
        )
    zero = stored.get(f"{module}.weight_zero_point")
    if zero is not None and int(np.prod(zero.shape, dtype=np.int64)) != grid[0] * grid[1]:
        raise BadCheckpoint(f"{module}.weight_zero_point must be {grid}; it is {list(zero.shape)}")
