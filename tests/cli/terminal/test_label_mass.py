"""Labels that hold next to no probability are warned of, with the likely cause."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.tables.test_score import result
from onepass.api import ScoreRequest
from onepass.cli.terminal.label_mass import count, low_mass_warning
from onepass.loading.model import open_model
from onepass.loading.tokenizer import TextTokenizer


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Callable[[str], Path]) -> TextTokenizer:
    found = open_model(str(checkpoint("llama3"))).tokenizer
    assert found is not None
    return found


def warning(tokenizer: TextTokenizer, masses: list[float], **fields: Any) -> str | None:
    request = ScoreRequest(**{"query": "q", "items": ["a", "b", "c"], "labels": [" yes", " no"], **fields})
    return low_mass_warning(request, result(label_mass=masses), tokenizer)


def test_labels_that_hold_probability_are_not_warned_of(tokenizer: TextTokenizer) -> None:
    assert warning(tokenizer, [0.9, 0.001, 0.3]) is None
    assert low_mass_warning(ScoreRequest(query="q"), result(label_mass=None), tokenizer) is None


def test_a_missing_space_is_the_likely_cause(tokenizer: TextTokenizer) -> None:
    said = warning(tokenizer, [1e-5, 2e-5, 0.5], labels=["yes", "no"])
    assert said is not None
    assert said.startswith("the labels hold 2.0e-05 of the probability (median of 3 items)")
    assert "the label 'yes' has no leading space" in said
    assert 'try " yes"' in said


def test_a_space_too_many_is_told_too(tokenizer: TextTokenizer) -> None:
    said = warning(tokenizer, [1e-5] * 3, items=["a ", "b ", "c "])
    assert said is not None
    assert "ends in a space already" in said
    said = warning(tokenizer, [1e-5] * 3, query="q ", items=["", "", ""])
    assert said is not None
    assert "ends in a space already" in said


def test_otherwise_the_model_was_not_asked(tokenizer: TextTokenizer) -> None:
    said = warning(tokenizer, [1e-5] * 3)
    assert said is not None
    assert "let the query ask for one of them" in said


def test_nouns_agree_with_their_numbers() -> None:
    assert [count(n, "item") for n in (0, 1, 2000)] == ["0 items", "1 item", "2,000 items"]
