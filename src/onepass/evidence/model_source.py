"""Which model a benchmark or a validation loads, and how: once, whole, without replicas and without quantized weights.

Both make replicas and quantized weights of their own from what is loaded here. Loading itself is `onepass.scorer`.
"""

from dataclasses import dataclass
from pathlib import Path

from onepass.engine.load import Dtype
from onepass.loading.model import Model
from onepass.loading.tensor_reader import Progress, silent
from onepass.models.weights import Weights
from onepass.scorer import Scorer


@dataclass(frozen=True)
class ModelSource:
    """Parameters of `Scorer.load`."""

    model: str
    revision: str | None = None
    offline: bool = False
    cache_dir: Path | None = None
    progress: Progress = silent
    tp: int | None = None  # None: as many devices as the model needs
    adapter: str | None = None

    def load(self, dtype: Dtype) -> tuple[Model, Weights]:
        with Scorer.load(
            self.model,
            dtype=dtype,
            revision=self.revision,
            offline=self.offline,
            cache_dir=self.cache_dir,
            adapter=self.adapter,
            progress=self.progress,
            tp=self.tp,
            dp=1,
            quantize="none",
        ) as scorer:
            return scorer.model, scorer.weights
