"""Tiny models with scorers on them, the tokens that the engine's tests score, and the numbers they compare.

Programs are what costs time here, not arithmetic: scorers are shared by their options, and have few rungs. The standard
request is a query of 20 tokens and 8 items of 43 together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from onepass.api import ScoreRequest, ScoreResult
from onepass.engine.backends import CPU_PAGE
from onepass.engine.config import EngineConfig
from onepass.engine.kernels import without_isolation
from onepass.loading.model import Model, open_model
from onepass.models.weights import Weights
from onepass.scorer import Scorer

Ids = list[int]

FLOAT32 = 1e-5  # design: the most by which probabilities may differ between modes
BFLOAT16 = 1e-2
BFLOAT16_MEAN = 2e-3
LEAK = 1e-3  # a negative control must be off by at least this much, far above any tolerance it stands against

# Every way of running the standard request: the mode, and the options it needs.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "packed/dense": ("packed", {"mask": "dense"}),
    "packed/segment": ("packed", {"mask": "segment"}),
    "chunked": ("chunked", {"chunk_size": 4}),
    "extend": ("extend", {}),
}


def tokens(count: int, seed: int) -> Ids:
    """Distinct draws for distinct seeds; ids below 500 exist in every tiny vocabulary."""
    return np.random.default_rng(seed).integers(3, 500, count).tolist()


def items_of(lengths: Sequence[int], seed: int) -> list[Ids]:
    return [tokens(length, 1000 * seed + place) for place, length in enumerate(lengths)]


QUERY = tokens(20, 1)
ITEMS = items_of([3, 9, 1, 12, 5, 7, 2, 4], 2)


@dataclass
class Tiny:
    """One tiny model in one dtype, with a scorer for each set of options; `close` closes them all."""

    model: Model
    weights: Weights
    _scorers: dict[tuple[object, ...], Scorer] = field(default_factory=dict)
    _serial: dict[tuple[tuple[int, ...], ...], list[float]] = field(default_factory=dict)
    _labels: Ids = field(default_factory=list)

    @classmethod
    def open(cls, folder: Path, dtype: str) -> "Tiny":
        """What a layer adds is made small beside what it is added to, as in trained models: else the rounding of
        bfloat16 alone, on the same path, would move probabilities by more than the tolerance between paths."""
        model = open_model(str(folder))
        weights = model.load(jnp.dtype(dtype))
        layers = replace(weights.layers, out=weights.layers.out / 4, down=weights.layers.down / 4)
        return cls(model, replace(weights, layers=layers))

    def scorer(self, leaking: bool = False, **options: Any) -> Scorer:
        """Small steps and a small pool, and no programs from disk."""
        key = (leaking, *sorted(options.items()))
        if key not in self._scorers:
            config = EngineConfig(
                **{"keep_programs": False, "cache_bytes": 1 << 22, "max_batch_tokens": 256, **options}
            )
            attention = without_isolation(CPU_PAGE) if leaking else None
            self._scorers[key] = Scorer(self.model, self.weights, config, attention)
        return self._scorers[key]

    @property
    def labels(self) -> Ids:
        """The three tokens that are likeliest after the standard items: equal zeros would prove nothing."""
        if not self._labels:
            every = list(range(self.model.config.vocab_size))
            result = self.scorer().score(QUERY, ITEMS, label_token_ids=every, mode="serial")
            self._labels = np.argsort(-np.mean(result.scores, axis=0))[:3].tolist()
        return self._labels

    def request(self, query: Sequence[int], items: Sequence[Sequence[int]], **fields: Any) -> ScoreRequest:
        return ScoreRequest(**{"query": query, "items": items, "label_token_ids": self.labels, **fields})

    def run(
        self, way: str, query: Sequence[int], items: Sequence[Sequence[int]], leaking: bool = False, **fields: Any
    ) -> ScoreResult:
        mode, options = WAYS[way]
        result = self.scorer(leaking, **options).score_many([self.request(query, items, mode=mode, **fields)])[0]
        assert result.mode == mode
        return result

    def serial(self, query: Sequence[int], items: Sequence[Sequence[int]]) -> np.ndarray:
        """[items, labels] probabilities of each `query + item` alone in a step; each is computed once."""
        keys = [(tuple(query), tuple(item)) for item in items]
        missing = list(dict.fromkeys(key for key in keys if key not in self._serial))
        if missing:
            result = self.scorer().score_many([self.request(query, [item for _, item in missing], mode="serial")])[0]
            assert result.mode == "serial"
            self._serial.update(zip(missing, result.scores, strict=True))
        return np.array([self._serial[key] for key in keys])

    def close(self) -> None:
        for scorer in self._scorers.values():
            scorer.close()
        self._scorers.clear()


def numbers(result: ScoreResult) -> np.ndarray:
    """Everything read out, [items, 3 · labels], for comparisons that must be exact."""
    assert result.logprobs is not None
    return np.concatenate([result.scores, result.logprobs, result.logits], axis=1)


def difference(one: object, other: object) -> float:
    """The largest, over all numbers; shapes must agree."""
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    assert a.shape == b.shape
    assert np.isfinite(a).all()
    assert np.isfinite(b).all()
    return float(np.abs(a - b).max(initial=0.0))
