"""Whole numbers of 2, 3, 4 or 8 bits in 32-bit words: the first in the lowest bits, and no bits left out between."""

import numpy as np

SUPPORTED_BITS = (2, 3, 4, 8)


def unpack(words: np.ndarray, bits: int) -> np.ndarray:
    """[..., words] of int32 as [..., words · 32 / bits] of uint8."""
    raw = np.ascontiguousarray(words, "<i4").view(np.uint8)
    if bits == 8:
        return raw
    if bits == 3:  # numbers cross words: 32 of them in 3
        flags = np.unpackbits(raw, axis=-1, bitorder="little").reshape(*raw.shape[:-1], -1, 3)
        return flags[..., 0] | flags[..., 1] << 1 | flags[..., 2] << 2
    per_byte = 8 // bits
    out = np.empty((*raw.shape, per_byte), np.uint8)
    for place in range(per_byte):
        np.bitwise_and(raw >> (bits * place), (1 << bits) - 1, out=out[..., place])
    return out.reshape(*raw.shape[:-1], -1)


def unpack_range(words: np.ndarray, bits: int, wanted: slice) -> np.ndarray:
    """The numbers `wanted` of the last axis, from as few words as hold them."""
    first, last = wanted.start // 32, -(-wanted.stop // 32)  # 32 numbers take a whole number of words
    numbers = unpack(words[..., first * bits : last * bits], bits)
    return numbers[..., wanted.start - 32 * first : wanted.stop - 32 * first]
