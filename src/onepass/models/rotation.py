"""A rotation of a row's terms that spreads outliers: of a group side by side sums and differences are taken, by
Hadamard's matrix. Twice rotated is itself, times as many as are in a group.

Weights in int8 whose scales are of more than 32 terms are stored rotated, divided by that, and activations are rotated
before they are quantised (`kernels/cpu/csrc/`: `products/rotated_products.h` and `amx/quantized_tokens.h`), so that
their product is what it was. An outlier is spread over its group: sixteen terms, or 64 where a scale is of more than
96. The larger a group, the more it takes to rotate it; what each saves of drift is in docs/log.md.
"""

from functools import cache

import numpy as np


def group_of(block: int) -> int:
    """How many terms are rotated together where a scale is of so many; 1: none are."""
    return 1 if block <= 32 else 16 if block <= 96 else 64


@cache
def hadamard(size: int) -> np.ndarray:
    if size == 1:
        return np.ones((1, 1), np.float32)
    half = hadamard(size // 2)
    return np.block([[half, half], [half, -half]])


def rotated[Rows](rows: Rows, group: int) -> Rows:
    """Of the last axis, a multiple of so many numbers; an array of NumPy's or JAX's."""
    if group == 1:
        return rows
    groups = rows.reshape(*rows.shape[:-1], -1, group)  # type: ignore[attr-defined]
    made: Rows = (groups @ hadamard(group)).reshape(rows.shape)  # type: ignore[attr-defined]
    return made
