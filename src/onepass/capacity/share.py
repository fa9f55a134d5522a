"""A model divided among the chips of a target: `tp` devices share one copy, and `dp` copies stand side by side.

This is the only place of the package that knows how a model is split; what each device then costs is asked of one
device's share.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from onepass.errors import ConfigError
from onepass.models.config import ModelConfig
from onepass.models.weights import Weights, abstract, is_leaf


@dataclass(frozen=True)
class Share:
    """`config` is the whole model's."""

    config: ModelConfig
    dtype: np.dtype[Any]
    tp: int = 1

    def __post_init__(self) -> None:
        if self.tp != 1:
            raise ConfigError(f"tp must be 1; got {self.tp}")

    @cached_property
    def one_device(self) -> ModelConfig:
        return self.config

    @cached_property
    def weights(self) -> Weights:
        """The tree as shapes."""
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, self.dtype), abstract(self.config), is_leaf=is_leaf
        )
