"""A rotation of a row's terms that spreads outliers: a step of 64 terms is four lines of 16, and of every four numbers
below one another sums and differences are taken. Twice rotated is four times itself.

Weights in int8 with coarse scales are stored rotated, divided by four, and activations are rotated before they are
quantised (`kernels/cpu/csrc/amx/quantized_tokens.h`), so that their product is what it was. An outlier is spread over
four numbers: the drift of scales for many terms is a third less (docs/log.md).
"""

import numpy as np

STEP, LINE = 64, 16
SIGNS = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]], np.float32)


def rotated[Rows](rows: Rows) -> Rows:
    """Of the last axis, a multiple of 64 numbers; an array of NumPy's or JAX's."""
    lines = rows.reshape(*rows.shape[:-1], -1, STEP // LINE, LINE)  # type: ignore[attr-defined]
    made: Rows = (SIGNS @ lines).reshape(rows.shape)  # type: ignore[attr-defined]
    return made
