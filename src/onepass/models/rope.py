"""Rotary positions: `Rope`, its parameters as a HF config states them, and the frequencies that follow from them.

    default   1 / theta^(2i/d)
    linear    all frequencies divided by `factor`
    llama3    long waves divided by `factor`, short ones kept, those between blended by wavelength
    yarn      the same by dimension: those that turn less than `beta_slow` times within the original length are divided,
              those that turn more than `beta_fast` times are kept; `attention_factor` multiplies cosines and sines

Rotating queries and keys is `layers`. An unknown kind or parameter is an error, never ignored.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from onepass.errors import UnsupportedModel

RopeKind = Literal["default", "linear", "llama3", "yarn"]
REQUIRED_KEYS: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset({"factor"}),
}
YARN_KEYS = frozenset(
    {
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "original_max_position_embeddings",
        "truncate",
    }
)


@dataclass(frozen=True)
class Rope:
    """The base, and how long contexts stretch it."""

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    attention_factor: float = 1.0  # of cosines and sines
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True  # the bounds of yarn's blend to whole dimensions


def rope_from_hf(raw: Mapping[str, Any]) -> Rope:
    """Newer configs write `rope_parameters`, older ones `rope_theta` and `rope_scaling`: both are read."""
    extra = dict(raw.get("rope_parameters") or {})
    extra.update(raw.get("rope_scaling") or {})
    theta = extra.pop("rope_theta", None) or raw.get("rope_theta") or 10000.0
    kind = extra.pop("rope_type", None)
    kind = cast(RopeKind, extra.pop("type", None) or kind or "default")
    _check_keys(kind, extra)
    if kind == "yarn":
        return _yarn_from_hf(raw, float(theta), extra)
    return Rope(
        theta=float(theta),
        kind=kind,
        factor=float(extra.get("factor") or 1.0),
        low_freq_factor=float(extra.get("low_freq_factor") or 1.0),
        high_freq_factor=float(extra.get("high_freq_factor") or 4.0),
        original_max_position=int(extra.get("original_max_position_embeddings") or 8192),
    )


def _check_keys(kind: str, extra: Mapping[str, Any]) -> None:
    if kind not in REQUIRED_KEYS:
        raise UnsupportedModel(f"rope type {kind!r} is not supported; supported: {', '.join(REQUIRED_KEYS)}")
    required = REQUIRED_KEYS[kind]
    optional = YARN_KEYS if kind == "yarn" else frozenset()
    surplus = {k for k in extra.keys() - required - optional if extra[k] not in (None, 1.0)}
    if required - extra.keys() or surplus:
        wanted = ", ".join(sorted(required)) or "nothing"
        if optional:
            wanted += f" and optionally {', '.join(sorted(optional))}"
        raise UnsupportedModel(f"rope type {kind!r} takes {wanted}; got {', '.join(sorted(extra)) or 'nothing'}")


def _yarn_from_hf(raw: Mapping[str, Any], theta: float, extra: Mapping[str, Any]) -> Rope:
    """With transformers' defaults: an original length on the top level counts first, the model's own limit last."""
    original = raw.get("original_max_position_embeddings") or extra.get("original_max_position_embeddings")
    original = int(original or raw.get("max_position_embeddings") or 0)
    factor = extra["factor"]
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not factor >= 1 or original < 1:
        raise UnsupportedModel(
            f"rope type 'yarn' needs a factor of at least 1 and an original length; got factor {factor!r} and "
            f"original_max_position_embeddings {original}"
        )
    attention = extra.get("attention_factor")
    if attention is None:
        attention = yarn_attention_factor(factor, extra.get("mscale"), extra.get("mscale_all_dim"))
    return Rope(
        theta=theta,
        kind="yarn",
        factor=float(factor),
        original_max_position=original,
        attention_factor=float(attention),
        beta_fast=float(extra.get("beta_fast") or 32.0),
        beta_slow=float(extra.get("beta_slow") or 1.0),
        truncate=bool(extra.get("truncate", True)),
    )


def yarn_attention_factor(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """What multiplies cosines and sines where a config does not say: 0.1 ln(factor) + 1, or the ratio of two such terms
    where it has both `mscale` and `mscale_all_dim`."""

    def term(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    return term(mscale) / term(mscale_all_dim) if mscale and mscale_all_dim else term(1.0)


def inverse_frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """Radians per position for each pair of a head's dimensions, stretched as the config says."""
    plain = 1.0 / rope.theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.kind == "linear":
        plain = plain / rope.factor
    if rope.kind == "llama3":
        plain = _llama3(plain, rope)
    if rope.kind == "yarn":
        plain = _yarn(plain, rope, head_dim)
    return plain.astype(np.float32)


def _llama3(plain: np.ndarray, rope: Rope) -> np.ndarray:
    """Long waves are slowed by `factor`, short ones kept, those between blended smoothly."""
    wavelength = 2 * np.pi / plain
    low = rope.original_max_position / rope.low_freq_factor
    high = rope.original_max_position / rope.high_freq_factor
    blend = (rope.original_max_position / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    between = (1 - blend) * plain / rope.factor + blend * plain
    return np.where(wavelength > low, plain / rope.factor, np.where(wavelength < high, plain, between))


def _yarn(plain: np.ndarray, rope: Rope, head_dim: int) -> np.ndarray:
    def dimension(turns: float) -> float:
        """The dimension that turns so often within the original length."""
        return head_dim * math.log(rope.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # as transformers: a step instead of a division by zero
    divided = np.clip((np.arange(len(plain)) - low) / (high - low), 0, 1)
    return plain / rope.factor * divided + plain * (1 - divided)
