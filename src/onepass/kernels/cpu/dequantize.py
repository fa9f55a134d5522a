"""Blocks of quantised GGUF tensors to float32, in C++ (`csrc/gguf_dequantize.cc`): `dequantizer()`.

The same bits as the `gguf` package's NumPy code, about ten times as fast, and Python's lock is free meanwhile. Where
blocks lie in a file, and what is done where nothing can be built, is `loading.gguf_file`.
"""

import ctypes
from collections.abc import Callable

import numpy as np

from onepass.kernels.cpu.build import NotBuilt, load_gguf

Dequantize = Callable[[np.ndarray, int, np.ndarray], None]


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
        for array, dtype in ((blocks, np.uint8), (out, np.float32)):
            if not array.flags.c_contiguous or array.dtype != dtype:
                raise ValueError(f"wanted a contiguous array of {np.dtype(dtype)}; got {array.dtype} {array.strides}")
        if not function(type_number, blocks.ctypes.data, len(blocks), out.ctypes.data):
            raise ValueError(f"no block of a GGUF file has the type number {type_number}")

    return dequantize
