"""Logits and log-sum-exps into a `ScoreResult`: probabilities, log-probabilities, label mass, continuations.

Everything here is numpy on the host, a handful of numbers an item.
"""

from dataclasses import dataclass

import numpy as np

from onepass.api import Continuation, ScoreResult, Timings, Usage
from onepass.engine.encode import Encoded, Ids
from onepass.engine.segments import regroup
from onepass.loading.tokenizer import TextTokenizer


@dataclass(frozen=True)
class ReadOut:
    """What was read on the device: [readouts, labels] logits and [readouts] log-sum-exps over the vocabulary."""

    logits: np.ndarray
    logsumexp: np.ndarray


@dataclass(frozen=True)
class Told:
    """What the result says about how it was computed."""

    model: str
    mode: str
    reason: str
    usage: Usage
    timings: Timings


def result_of(encoded: Encoded, read: ReadOut, told: Told, tokenizer: TextTokenizer | None) -> ScoreResult:
    counts = [len(labels) for labels in encoded.labels]
    logprobs = read.logits - read.logsumexp[:, None]
    continuations = None
    logits = read.logits
    if encoded.continuations:
        apart = told.mode == "serial"
        logprobs, tokens = regroup(encoded, logprobs, apart)
        logits, _ = regroup(encoded, read.logits, apart)
        continuations = [[Continuation(sum(t), tuple(t)) for t in row] for row in tokens]
    scores = (
        _softmax(logits, counts, encoded.request.temperature) if encoded.request.apply_softmax else np.exp(logprobs)
    )
    whole = encoded.whole_vocabulary
    return ScoreResult(
        scores=_ragged(scores, counts),
        logprobs=_ragged(logprobs, counts) if whole else None,
        logits=_ragged(logits, counts),
        label_mass=_mass(logprobs, counts) if whole else None,
        labels=_label_texts(encoded, tokenizer),
        label_token_ids=_shared({labels: list(labels) for labels in set(encoded.labels)}, encoded.labels),
        usage=told.usage,
        timings=told.timings,
        mode=told.mode,
        reason=told.reason,
        model=told.model,
        continuations=continuations,
        items=encoded.request.items,
    )


def _held(values: np.ndarray, counts: list[int]) -> np.ndarray:
    """Which columns of each row are labels: sets may differ in size."""
    return np.arange(values.shape[1]) < np.array(counts)[:, None]


def _mass(logprobs: np.ndarray, counts: list[int]) -> list[float]:
    if not logprobs.size:
        return [0.0] * len(counts)
    return np.where(_held(logprobs, counts), np.exp(logprobs.astype(np.float64)), 0.0).sum(axis=1).tolist()


def _softmax(logits: np.ndarray, counts: list[int], temperature: float) -> np.ndarray:
    if not logits.size:
        return logits
    held = np.where(_held(logits, counts), logits.astype(np.float64), -np.inf)
    with np.errstate(over="ignore"):  # a temperature near 0 leaves the best label alone
        weights = np.exp((held - held.max(axis=1, keepdims=True)) / temperature)
    return weights / weights.sum(axis=1, keepdims=True)


def _ragged(values: np.ndarray, counts: list[int]) -> list[list[float]]:
    rows: list[list[float]] = values.astype(np.float64).tolist()
    if values.shape[1:] == (min(counts, default=0),):  # every set fills its row, as is usual
        return rows
    return [row[:n] for row, n in zip(rows, counts, strict=True)]


def _label_texts(encoded: Encoded, tokenizer: TextTokenizer | None) -> list[list[str]]:
    if encoded.request.labels is not None:
        return [list(encoded.request.labels)] * len(encoded.items)
    texts = {
        labels: [tokenizer.token(token) if tokenizer else f"<{token}>" for token in labels]
        for labels in set(encoded.labels)
    }
    return _shared(texts, encoded.labels)


def _shared[Told](told: dict[Ids, Told], labels: tuple[Ids, ...]) -> list[Told]:
    """What is told of each item's labels; items with the same ones share it, as thousands usually do."""
    return [told[one] for one in labels]
