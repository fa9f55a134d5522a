"""Logits and log-sum-exps into a `ScoreResult`: probabilities, log-probabilities, label mass, continuations.

Everything here is numpy on the host, a handful of numbers per item.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from onepass.api import Continuation, Prompt, PromptPart, ScoreResult, Timings, Usage
from onepass.engine.encoding.classes import class_scores
from onepass.engine.encoding.encode import Encoded
from onepass.engine.encoding.ids import Ids
from onepass.engine.encoding.segments import item_starts
from onepass.loading.tokenizer import TextTokenizer
from onepass.trace import Trace


@dataclass(frozen=True)
class ReadOut:
    """What was read on the device, a number for each item's labels and then its continuations' tokens: the logit, and
    the log-sum-exp over the vocabulary at the same place. With continuations also `best`, [2, numbers]: the largest
    logit at that place and its token."""

    logits: np.ndarray
    logsumexp: np.ndarray
    best: np.ndarray | None = None

    def part(self, first: int, last: int) -> "ReadOut":
        best = None if self.best is None else self.best[:, first:last]
        return ReadOut(self.logits[first:last], self.logsumexp[first:last], best)


@dataclass(frozen=True)
class RunInfo:
    """What the result says about how it was computed."""

    model: str
    mode: str
    reason: str
    usage: Usage
    timings: Timings
    trace: Trace | None = None  # where the request asked for it


def result_of(encoded: Encoded, read: ReadOut, info: RunInfo, tokenizer: TextTokenizer | None) -> ScoreResult:
    counts = list(map(len, encoded.labels))
    logprobs = read.logits - read.logsumexp
    continuations = _continuations(encoded, logprobs, read) if encoded.request.continuations is not None else None
    logits, logprobs = (_label_rows(encoded, counts, values) for values in (read.logits, logprobs))
    scores = (
        _softmax(logits, counts, encoded.request.temperature) if encoded.request.apply_softmax else np.exp(logprobs)
    )
    logprobs = logprobs.astype(np.float64)
    whole = encoded.whole_vocabulary
    head = encoded.class_head
    if head is not None and head.activation != "softmax" and not encoded.request.apply_softmax:
        scores, whole = class_scores(head, logits), False
    return ScoreResult(
        scores=_ragged(scores, counts),
        logprobs=_ragged(logprobs, counts) if whole else None,
        logits=_ragged(logits, counts),
        label_mass=_mass(logprobs, counts) if whole else None,
        labels=_label_texts(encoded, tokenizer),
        label_token_ids=_shared(list, encoded.labels),
        usage=info.usage,
        timings=info.timings,
        mode=info.mode,
        reason=info.reason,
        model=info.model,
        continuations=continuations,
        items=encoded.request.items,
        prompt=prompt_of(encoded, tokenizer) if encoded.request.return_prompt else None,
        trace=info.trace,
    )


def prompt_of(encoded: Encoded, tokenizer: TextTokenizer | None) -> Prompt:
    """What the model is given, item by item; where items have branches, an item is each with each of its branches."""

    def part(ids: Ids) -> PromptPart:
        text = "".join(f"<{token}>" for token in ids) if tokenizer is None else tokenizer.decode(ids)
        return PromptPart(text, ids)

    items = encoded.items
    if encoded.branches:
        items = tuple((*item, *branch) for item in items for branch in encoded.branches)
    texts = encoded.continuations if any(encoded.continuations) else ()
    return Prompt(part(encoded.context), tuple(map(part, items)), tuple(tuple(map(part, own)) for own in texts))


def _label_rows(encoded: Encoded, counts: list[int], values: np.ndarray) -> np.ndarray:
    """[items, labels], zero-padded where sets differ in size."""
    most = max(counts, default=0)
    if not any(encoded.continuations) and most == min(counts, default=0):
        return values.reshape(len(counts), most)
    rows = np.zeros((len(counts), most), values.dtype)
    for row, start, count in zip(rows, item_starts(encoded).tolist(), counts, strict=False):
        row[:count] = values[start : start + count]
    return rows


def _continuations(encoded: Encoded, logprobs: np.ndarray, read: ReadOut) -> list[list[Continuation]]:
    out = []
    starts = item_starts(encoded).tolist()
    if read.best is None:  # there are no items
        return []
    best_logprobs, best_tokens = (read.best[0] - read.logsumexp).tolist(), read.best[1].astype(int).tolist()
    for start, labels, texts in zip(starts[:-1], encoded.labels, encoded.continuations, strict=True):
        at, row = start + len(labels), []
        for text in texts:
            own = slice(at, at + len(text))
            tokens, best = tuple(map(float, logprobs[own])), tuple(best_tokens[own])
            row.append(Continuation(sum(tokens), tokens, best == text, best, tuple(best_logprobs[own])))
            at += len(text)
        out.append(row)
    return out


def _held(values: np.ndarray, counts: list[int], other: float) -> np.ndarray:
    """The columns of each row that are labels, and `other` elsewhere: sets may differ in size."""
    if _filled(values, counts):
        return values
    return np.where(np.arange(values.shape[1]) < np.array(counts)[:, None], values, other)


def _filled(values: np.ndarray, counts: list[int]) -> bool:
    """Whether every set fills its row, as is usual."""
    return values.shape[1:] == (min(counts, default=0),)


def _mass(logprobs: np.ndarray, counts: list[int]) -> list[float]:
    if not logprobs.size:
        return [0.0] * len(counts)
    return _held(np.exp(logprobs), counts, 0.0).sum(axis=1).tolist()


def _softmax(logits: np.ndarray, counts: list[int], temperature: float) -> np.ndarray:
    if not logits.size:
        return logits
    held = _held(logits.astype(np.float64), counts, -np.inf)
    with np.errstate(over="ignore"):  # a temperature near 0 leaves the best label alone
        weights = np.exp((held - held.max(axis=1, keepdims=True)) / temperature)
    return weights / weights.sum(axis=1, keepdims=True)


def _ragged(values: np.ndarray, counts: list[int]) -> list[list[float]]:
    rows: list[list[float]] = values.tolist()
    if _filled(values, counts):
        return rows
    return [row[:n] for row, n in zip(rows, counts, strict=True)]


def _label_texts(encoded: Encoded, tokenizer: TextTokenizer | None) -> list[list[str]]:
    if (head := encoded.class_head) is not None:
        return _shared(lambda ids: [head.labels[n] for n in ids], encoded.labels)
    if encoded.request.labels is not None:
        return [list(encoded.request.labels)] * len(encoded.items)

    def texts(labels: Ids) -> list[str]:
        return [tokenizer.token(token) if tokenizer else f"<{token}>" for token in labels]

    return _shared(texts, encoded.labels)


def _shared[Word](tell: Callable[[Ids], list[Word]], labels: tuple[Ids, ...]) -> list[list[Word]]:
    """What is told of each item's labels; items with the same ones share it, as thousands usually do."""
    if labels and labels.count(labels[0]) == len(labels):
        return [tell(labels[0])] * len(labels)
    by_set = {key: tell(key) for key in set(labels)}
    return [by_set[key] for key in labels]
