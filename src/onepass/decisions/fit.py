"""Fits a `TypeCalibration` to examples with known answers: a temperature, and a bias per option position.

Log-loss is minimised by Newton's method in the inverse temperature and the biases over it, in which it is convex; the
biases are pulled towards 0, and one is held at 0 in effect, since a shift of all changes nothing. What the fit is worth
is measured on folds that it did not see.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onepass.decisions.calibration import IDENTITY, TypeCalibration
from onepass.decisions.metrics import Metrics, metrics_of

FOLDS = 5
MIN_EXAMPLES = 20  # of one type; fewer say nothing about a temperature
MAX_POSITIONS = 26  # positions that get a bias of their own
PULL = 1.0  # of a bias towards 0: as if one example in all had been seen against it
STEPS = 100


@dataclass(frozen=True)
class Example:
    """The logits of a question's options in the order in which they stood, and which of them is right."""

    logits: tuple[float, ...]
    truth: int


@dataclass(frozen=True)
class Fit:
    """`before` and `after` are of the same examples; each of `after` was predicted by a fit that had not seen it."""

    calibration: TypeCalibration
    before: Metrics
    after: Metrics
    probabilities_before: np.ndarray
    probabilities_after: np.ndarray
    truth: np.ndarray


def fit_with_folds(examples: Sequence[Example], folds: int = FOLDS, seed: int = 0) -> Fit:
    """Examples are dealt to the folds at random, by `seed`."""
    truth = np.array([example.truth for example in examples])
    fold = np.random.default_rng(seed).permutation(len(examples)) % folds
    after = np.zeros((len(examples), max(len(example.logits) for example in examples)))
    for number in range(folds):
        seen = [example for example, own in zip(examples, fold, strict=True) if own != number]
        calibration = fit(seen)
        for index in np.flatnonzero(fold == number).tolist():
            _put(after[index], calibration, examples[index])
    before = np.zeros_like(after)
    for row, example in zip(before, examples, strict=True):
        _put(row, IDENTITY, example)
    return Fit(fit(examples), metrics_of(before, truth), metrics_of(after, truth), before, after, truth)


def fit(examples: Sequence[Example]) -> TypeCalibration:
    """The temperature and biases of least log-loss on these examples."""
    width = max(len(example.logits) for example in examples)
    positions = min(width, MAX_POSITIONS)
    logits = np.zeros((len(examples), width))
    there = np.zeros((len(examples), width), bool)
    for row, (values, example) in enumerate(zip(logits, examples, strict=True)):
        count = len(example.logits)
        values[:count] = np.array(example.logits) - max(example.logits)
        there[row, :count] = True
    truth = np.array([example.truth for example in examples])
    # scores = inverse · logits + shift[position]; a bias is −shift / inverse.
    features = np.zeros((len(examples), width, 1 + positions))
    features[:, :, 0] = logits
    features[:, np.arange(positions), 1 + np.arange(positions)] = 1.0
    features[~there] = 0.0
    weights = _newton(features, there, truth)
    inverse = max(float(weights[0]), 1e-3)
    bias = -weights[1:] / inverse
    return TypeCalibration(1.0 / inverse, tuple((bias - bias.mean()).tolist()))


def _newton(features: np.ndarray, there: np.ndarray, truth: np.ndarray) -> np.ndarray:
    count, _, size = features.shape
    weights = np.zeros(size)
    weights[0] = 1.0
    pull = np.full(size, PULL)
    pull[0] = 1e-6
    centre = np.zeros(size)
    centre[0] = 1.0
    right = features[np.arange(count), truth].sum(axis=0)
    loss = _loss(weights, features, there, truth, pull, centre)
    for _ in range(STEPS):
        p = _softmax(features @ weights, there)
        mean = np.einsum("nk,nkf->nf", p, features)
        gradient = mean.sum(axis=0) - right + pull * (weights - centre)
        second = np.einsum("nk,nkf,nkg->fg", p, features, features) - mean.T @ mean + np.diag(pull)
        step = np.linalg.solve(second, gradient)
        size_of_step = 1.0
        while size_of_step > 1e-6:
            tried = weights - size_of_step * step
            after = _loss(tried, features, there, truth, pull, centre)
            if tried[0] > 0 and after <= loss:
                break
            size_of_step /= 2
        else:
            break
        done = loss - after < 1e-10 * max(1.0, loss)
        weights, loss = tried, after
        if done:
            break
    return weights


def _loss(
    weights: np.ndarray,
    features: np.ndarray,
    there: np.ndarray,
    truth: np.ndarray,
    pull: np.ndarray,
    centre: np.ndarray,
) -> float:
    p = _softmax(features @ weights, there)[np.arange(len(truth)), truth]
    return float(-np.log(np.maximum(p, 1e-300)).sum() + 0.5 * (pull * (weights - centre) ** 2).sum())


def _softmax(scores: np.ndarray, there: np.ndarray) -> np.ndarray:
    held = np.where(there, scores, -np.inf)
    values = np.exp(held - held.max(axis=1, keepdims=True))
    return np.asarray(values / values.sum(axis=1, keepdims=True))


def _put(row: np.ndarray, calibration: TypeCalibration, example: Example) -> None:
    row[: len(example.logits)] = calibration.apply(np.array(example.logits))
