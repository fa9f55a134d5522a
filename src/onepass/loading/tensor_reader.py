"""What a loader hands on: `TensorReader`, the tensors of a checkpoint under their Hugging Face names.

The readers are in `safetensors` and `reader`; putting tensors into the network's tree is `load_weights`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

# progress(stage, done, total): stage is a short noun such as "download" or "load"; total 0 means not known yet.
Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """The progress of a caller who does not look."""


@dataclass(frozen=True)
class TensorInfo:
    """Shape and dtype as the file states them; `dtype` is a name such as "F32", "BF16" or "Q4_1"."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Blocks:
    """A matrix in 8 bits: scale · number + offset, with a scale and an offset of every `block` terms of a row."""

    numbers: np.ndarray  # int8 [rows, terms]
    scale: np.ndarray  # float32 [rows, terms / block]
    offset: np.ndarray | None  # the same, or None: all are 0

    @property
    def block(self) -> int:
        return self.numbers.shape[-1] // self.scale.shape[-1]


class TensorReader(Protocol):
    """Tensors by Hugging Face name (`model.layers.0.self_attn.q_proj.weight`, [out, in])."""

    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        """One tensor on the host, or the part of it at `index`, in a floating dtype (bfloat16 through ml_dtypes),
        Hugging Face layout."""
        ...

    def read_blocks(self, name: str) -> Blocks | None:
        """A matrix as the file keeps it, where that is in 8 bits or fewer and can be had; None elsewhere."""
        ...

    def close(self) -> None: ...
