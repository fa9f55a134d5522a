"""Token ids as callers give them: plain lists of integers quickly, anything else looked at token by token.

Thousands of items are common, so that for plain lists nothing is done for each id in Python.
"""

import struct
from collections.abc import Sequence
from operator import countOf
from typing import Any

import numpy as np

from onepass.errors import RequestError, shown

Ids = tuple[int, ...]


def ids_of(value: Any, vocab_size: int, param: str, code: str) -> Ids:
    """Checked; `param` and `code` are for the error."""
    if not is_list(value):
        raise RequestError(code, f"{param} must be a string or a list of token ids; got {shown(value)}", param)
    if (array := plain_ids(value, vocab_size)) is not None:
        return tuple(value) if isinstance(value, list | tuple) else tuple(array.tolist())
    # Something is wrong, or a rare integer type: look at each token for the message.
    ids = tuple(whole_number(token, param, "invalid_token_id_type") for token in value)
    bad = next((token for token in ids if not 0 <= token < vocab_size), None)
    if bad is not None:
        raise RequestError(
            "token_id_out_of_range", f"{param} must hold ids from 0 to {vocab_size - 1}; got {bad}", param
        )
    return ids


def plain_ids(value: Any, vocab_size: int) -> np.ndarray | None:
    """The ids as one array, if they are plainly integers and all in the vocabulary."""
    array = _plain_integers(value)
    # Without a sign a negative id is beyond any vocabulary.
    if array is None or (array.size and array.view(f"u{array.itemsize}").max() >= vocab_size):
        return None
    return array


def int_array(ids: Sequence[int]) -> np.ndarray:
    """[ids] int32. Half the time of `np.array`, which asks each of them what it is."""
    return np.frombuffer(struct.pack(f"{len(ids)}i", *ids), np.int32)


def joined(items: Sequence[Sequence[int]]) -> list[int]:
    """Their ids, one after another."""
    ids: list[int] = []
    for item in items:
        ids += item
    return ids


def is_list(value: Any) -> bool:
    """Bytes are a sequence of integers too, but nobody means them as ids."""
    if type(value) is list:
        return True
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def whole_number(value: Any, param: str, code: str) -> int:
    if type(value) is int:
        return value
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise RequestError(code, f"{param} must hold whole numbers; got {shown(value)}", param)
    return int(value)


def _plain_integers(value: Any) -> np.ndarray | None:
    """Booleans and floats are not ids."""
    if isinstance(value, np.ndarray):
        return value.astype(np.int64) if value.dtype.kind in "iu" and value.ndim == 1 else None
    if countOf(map(type, value), int) != len(value):
        return None
    try:
        return int_array(value)
    except struct.error:  # one is too large for any vocabulary
        return None
