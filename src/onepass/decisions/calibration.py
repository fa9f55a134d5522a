"""A calibration: per question type a temperature and a bias per option position, applied to the labels' logits.

    probabilities = softmax((logits − bias) / temperature)

Fitting one is `fit`; which file belongs to a model is `calibration_store`.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onepass.decisions.questions import QUESTION_TYPES, QuestionType
from onepass.errors import ConfigError

FORMAT = "onepass-calibration-1"


@dataclass(frozen=True)
class TypeCalibration:
    """`bias[j]` is what the model adds to the logit of the option at position j, whatever it says; positions beyond the
    list have none."""

    temperature: float = 1.0
    bias: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        numbers = (self.temperature, *self.bias)
        if not all(isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x) for x in numbers):
            raise ConfigError(f"a calibration must hold finite numbers; got {numbers}")
        if self.temperature <= 0:
            raise ConfigError(f"a temperature must be above 0; got {self.temperature}")

    def apply(self, logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
        """[options] logits in the order in which the options stood, into probabilities; `temperature` comes on top."""
        values = logits.astype(np.float64)
        known = min(len(self.bias), len(values))
        values[:known] -= self.bias[:known]
        weights = np.exp((values - values.max()) / (self.temperature * temperature))
        return np.asarray(weights / weights.sum())


@dataclass(frozen=True)
class Calibration:
    """`name` is told with every answer; `fitted` holds what the fit measured."""

    name: str
    types: Mapping[QuestionType, TypeCalibration] = field(default_factory=dict)
    model: str | None = None
    fitted: Mapping[str, Any] = field(default_factory=dict)

    def of(self, kind: QuestionType) -> TypeCalibration:
        return self.types.get(kind, IDENTITY)

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "name": self.name,
            "model": self.model,
            "types": {
                kind: {"temperature": one.temperature, "bias": list(one.bias)} for kind, one in self.types.items()
            },
            "fitted": dict(self.fitted),
        }


IDENTITY = TypeCalibration()


def calibration_from(data: Any, source: str) -> Calibration:
    """What `to_dict` wrote; `source` names the file in errors."""
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise ConfigError(f"{source} must be a calibration of format {FORMAT!r}; fit one with onepass calibrate")
    types = data.get("types")
    if not isinstance(types, Mapping) or not set(types) <= set(QUESTION_TYPES):
        raise ConfigError(f"{source}: types must be an object with {', '.join(QUESTION_TYPES)}")
    name, model = data.get("name"), data.get("model")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{source}: name must be a text; got {name!r}")
    read = {kind: _type_calibration(one, f"{source}: {kind}") for kind, one in types.items()}
    return Calibration(name, read, model if isinstance(model, str) else None, data.get("fitted") or {})


def _type_calibration(data: Any, source: str) -> TypeCalibration:
    if not isinstance(data, Mapping) or not set(data) <= {"temperature", "bias"}:
        raise ConfigError(f"{source} must have temperature and bias; got {data!r}")
    bias: Sequence[float] = data.get("bias", ())
    if isinstance(bias, str) or not isinstance(bias, Sequence):
        raise ConfigError(f"{source}: bias must be a list of numbers; got {bias!r}")
    return TypeCalibration(data.get("temperature", 1.0), tuple(bias))


def digest(types: Mapping[QuestionType, TypeCalibration]) -> str:
    """Eight hex digits that change when a number does."""
    plain = {kind: [one.temperature, *one.bias] for kind, one in sorted(types.items())}
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:8]
