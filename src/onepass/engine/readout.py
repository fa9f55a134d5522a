"""Logits and log-sum-exps into a `ScoreResult`: probabilities, log-probabilities, label mass, continuations.

Everything here is numpy on the host, a handful of numbers an item.
"""

from dataclasses import dataclass

import numpy as np

from onepass.api import Continuation, ScoreResult, Timings, Usage
from onepass.engine.encode import Encoded
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
        label_mass=[float(np.exp(row[:n]).sum()) for row, n in zip(logprobs, counts, strict=True)] if whole else None,
        labels=_label_texts(encoded, tokenizer),
        label_token_ids=[list(labels) for labels in encoded.labels],
        usage=told.usage,
        timings=told.timings,
        mode=told.mode,
        reason=told.reason,
        model=told.model,
        continuations=continuations,
        items=_item_texts(encoded),
    )


def _softmax(logits: np.ndarray, counts: list[int], temperature: float) -> np.ndarray:
    if not logits.size:
        return logits
    held = np.arange(logits.shape[1]) < np.array(counts)[:, None]
    scaled = np.where(held, logits.astype(np.float64) / temperature, -np.inf)
    weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _ragged(values: np.ndarray, counts: list[int]) -> list[list[float]]:
    return [row[:n] for row, n in zip(values.astype(np.float64).tolist(), counts, strict=True)]


def _label_texts(encoded: Encoded, tokenizer: TextTokenizer | None) -> list[list[str]]:
    if encoded.request.labels is not None:
        return [list(encoded.request.labels)] * len(encoded.items)
    names: dict[int, str] = {}
    for labels in set(encoded.labels):
        for token in labels:
            names[token] = tokenizer.token(token) if tokenizer else f"<{token}>"
    return [[names[token] for token in labels] for labels in encoded.labels]


def _item_texts(encoded: Encoded) -> list[str]:
    items = encoded.request.items
    texts = [items] if isinstance(items, str) else items
    return [
        text if isinstance(text, str) else f"<{len(ids)} tokens>"
        for text, ids in zip(texts, encoded.items, strict=True)
    ]
