"""Scores that others published for models with large weights: checked where those are in the user's cache."""

import numpy as np
import pytest

from onepass import Scorer
from onepass.errors import OnepassError
from onepass.loading.hub import hub_folder

QUERY = "Which planet is known as the Red Planet?"
# sentence-transformers' own tests assert these logits, yes - no, in float32 within 1e-4.
PUBLISHED = {
    "Venus is often called Earth's twin because of its similar size and proximity.": -3.1093,
    "Mars, known for its reddish appearance, is often referred to as the Red Planet.": 7.1204,
    "Jupiter, the largest planet in our solar system, has a prominent red spot.": -0.3788,
    "Saturn, famous for its rings, is sometimes mistaken for the Red Planet.": 3.5416,
}


def test_qwen3_reranker_gives_the_published_logits() -> None:
    name = "Qwen/Qwen3-Reranker-0.6B"
    try:
        hub_folder(name, offline=True)
    except OnepassError as error:
        pytest.skip(f"the weights are not here: {error}")
    with Scorer.load(name, dtype="float32", offline=True) as scorer:
        raw = scorer.predict([(QUERY, document) for document in PUBLISHED], raw=True)
    np.testing.assert_allclose(raw, list(PUBLISHED.values()), atol=2e-4)
