"""Blocks of quantised GGUF tensors in C++ (`csrc/gguf/`): to float32, `dequantizer()`, or to 8-bit numbers with their
scales, `splitter()`.

The same bits as the `gguf` package's NumPy code, about ten times as fast, and Python's lock is free meanwhile. Where
blocks lie in a file, and what is done where nothing can be built, is `loading.gguf.file`.
"""

import ctypes
from collections.abc import Callable

import numpy as np

from onepass.kernels.cpu.build import NotBuilt, load_gguf

Dequantize = Callable[[np.ndarray, int, np.ndarray], None]
Split = Callable[[np.ndarray, int, np.ndarray, np.ndarray, np.ndarray], None]
GROUP = 16  # numbers that `split` gives a scale and an offset


def dequantizer() -> Dequantize | None:
    """`dequantize(blocks, type_number, out)`: contiguous bytes, [blocks, bytes of a block], into the float32 numbers
    that they hold. None where nothing can be built."""
    try:
        function = load_gguf().onepass_gguf_dequantize
    except NotBuilt:
        return None
    function.argtypes = (ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    function.restype = ctypes.c_bool

    def dequantize(blocks: np.ndarray, type_number: int, out: np.ndarray) -> None:
        _check((blocks, np.uint8), (out, np.float32))
        if not function(type_number, blocks.ctypes.data, len(blocks), out.ctypes.data):
            raise ValueError(f"no block of a GGUF file has the type number {type_number}")

    return dequantize


def splitter() -> Split | None:
    """`split(blocks, type_number, numbers, scale, offset)`: the same blocks as int8 numbers, and a float32 scale and
    offset of every 16 of them: scale · number + offset is what `dequantizer` gives. None where nothing can be built."""
    try:
        function = load_gguf().onepass_gguf_split
    except NotBuilt:
        return None
    function.argtypes = (ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * 3)
    function.restype = ctypes.c_bool

    def split(blocks: np.ndarray, type_number: int, numbers: np.ndarray, scale: np.ndarray, offset: np.ndarray) -> None:
        _check((blocks, np.uint8), (numbers, np.int8), (scale, np.float32), (offset, np.float32))
        outputs = (array.ctypes.data for array in (numbers, scale, offset))
        if not function(type_number, blocks.ctypes.data, len(blocks), *outputs):
            raise ValueError(f"no block of a GGUF file has the type number {type_number}")

    return split


def _check(*arrays: tuple[np.ndarray, type]) -> None:
    for array, dtype in arrays:
        if not array.flags.c_contiguous or array.dtype != dtype:
            raise ValueError(f"wanted a contiguous array of {np.dtype(dtype)}; got {array.dtype} {array.strides}")
