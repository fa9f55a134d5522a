"""How close numbers must be to count as the same: the tolerances of the design, for `validate` and `bench`."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Tolerance:
    """The largest difference of probabilities that passes, anywhere and on average."""

    most: float
    mean: float


EXACT = Tolerance(0.0, 0.0)
BETWEEN_MODES: dict[str, Tolerance] = {
    "float32": Tolerance(1e-5, 1e-5),
    "bfloat16": Tolerance(1e-2, 2e-3),
    "gguf": Tolerance(1e-5, 1e-5),  # against the same file widened to float32
    "gguf-bfloat16": Tolerance(1e-2, 2e-3),  # to bfloat16
    "int8": Tolerance(5e-2, 1e-2),  # against the same model unquantized
    "fp8": Tolerance(1e-1, 3e-2),  # against bfloat16: 8 bits drift, and `validate --quantize` says how far
}
AGAINST_TORCH: dict[Dtype, Tolerance] = {"float32": Tolerance(1e-4, 1e-4), "bfloat16": Tolerance(2e-2, 1e-2)}


def numbers_name(dtype: str, quantize: str | None) -> str:
    """What weights are compared as: their dtype, or how they are quantized. Blocks of a GGUF file are widened to the
    network's numbers, which decide how close scores come."""
    if quantize in (None, "none"):
        return dtype
    return "gguf-bfloat16" if (quantize, dtype) == ("gguf", "bfloat16") else str(quantize)


# In 16 bits, thirty layers move a logit by up to 0.1 from one order of additions to another, whoever computes them, and
# so a probability p by up to p·(1-p)/10. The tolerance of 1e-2 is for labels that are not likelier than this.
SHARP = 0.1


def fair_labels(largest: np.ndarray, count: int) -> np.ndarray:
    """Which labels, by the largest probability each was seen with, are nowhere SHARP; where fewer than `count` are not,
    the least sharp ones."""
    fair: np.ndarray = largest <= max(SHARP, float(np.sort(largest)[count - 1]))
    return fair


def fair_gaps(got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Differences of probabilities of labels that nobody chose, as they would be of labels just not SHARP: the same
    change of a logit moves those by less."""
    sharper: np.ndarray = np.maximum(1.0, wanted * (1 - wanted) / (SHARP * (1 - SHARP)))
    return np.abs(got - wanted) / sharper
