"""A scorer whose large requests take many steps."""

import pytest

from engine.tiny import Tiny
from onepass.scorer import Scorer


@pytest.fixture
def small_steps(tiny: Tiny) -> Scorer:
    """Steps of 64 tokens, so that a large request takes many."""
    return tiny.scorer(max_batch_tokens=64)
