"""A rotation of a row's terms that spreads outliers: of every sixteen side by side sums and differences are taken, by
Hadamard's matrix. Twice rotated is sixteen times itself.

Weights in int8 whose scales are of more than 32 terms are stored rotated, divided by sixteen, and activations are
rotated before they are quantised (`kernels/cpu/csrc/`: `products/rotated_products.h` and `amx/quantized_tokens.h`), so
that their product is what it was. An outlier is spread over sixteen numbers: with scales of 192 terms the drift is a
quarter less, and less than of four numbers (docs/log.md).
"""

import numpy as np

GROUP = 16


def _hadamard(size: int) -> np.ndarray:
    half = np.ones((1, 1), np.float32) if size == 2 else _hadamard(size // 2)
    return np.block([[half, half], [half, -half]])


SIGNS = _hadamard(GROUP)


def rotated[Rows](rows: Rows) -> Rows:
    """Of the last axis, a multiple of 16 numbers; an array of NumPy's or JAX's."""
    groups = rows.reshape(*rows.shape[:-1], -1, GROUP)  # type: ignore[attr-defined]
    made: Rows = (groups @ SIGNS).reshape(rows.shape)  # type: ignore[attr-defined]
    return made
