"""Among how many devices one model is split: a noun that configurations carry. No JAX.

What such devices say to each other is `collectives`; which of them holds what is `models.layout`.
"""

from dataclasses import dataclass

AXIS = "model"  # the mesh axis that heads, MLP columns and vocabulary rows are split over


@dataclass(frozen=True)
class Split:
    """`vocab_size` is the whole model's: rows of the split tables after it are padding."""

    devices: int = 1
    vocab_size: int | None = None


WHOLE = Split()
