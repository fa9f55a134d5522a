"""A tiny chat model in float32, and its tokenizer."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onepass.loading.model import open_model
from onepass.loading.tokenizer import TextTokenizer
from onepass.scorer import Scorer


@pytest.fixture(scope="session")
def decision_scorer(checkpoint: Callable[[str], Path]) -> Iterator[Scorer]:
    options = {"keep_programs": False, "max_batch_tokens": 512, "cache_bytes": 1 << 24}
    with Scorer.load(str(checkpoint("qwen3")), dtype="float32", calibration="none", **options) as scorer:
        yield scorer


@pytest.fixture(scope="session")
def checkpoint_tokenizer(checkpoint: Callable[[str], Path]) -> TextTokenizer:
    tokenizer = open_model(str(checkpoint("qwen3"))).tokenizer
    assert tokenizer is not None
    return tokenizer
