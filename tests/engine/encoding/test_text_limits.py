"""Limits of texts in bytes: errors that name the text, found before it is tokenised or rendered."""

from pathlib import Path

import pytest

from onepass.api import ScoreRequest
from onepass.engine.encoding.encode import Encoder
from onepass.engine.encoding.text_limits import text_size
from onepass.errors import RequestError
from onepass.loading.chat.template import ChatTemplates
from onepass.loading.model import open_model

LONG = "word " * 2_000_000
FITTING = {"query": "q", "items": ["b"], "labels": [" yes"]}


@pytest.fixture(scope="module")
def encoder(smollm2_gguf: Path) -> Encoder:
    """It may not tokenise more than a few pieces, of whatever is sent."""
    tokenizer = open_model(str(smollm2_gguf)).tokenizer

    def never() -> None:
        raise AssertionError("a long text was tokenised")

    return Encoder(tokenizer.checked(never), 49152, 8192, ChatTemplates({"default": "{{ messages[0].content }}"}))


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"query": LONG}, "too_long", "the query has 10,000,000 bytes; the limit is 8,192 tokens"),
        ({"items": ["a", LONG]}, "too_long", "items[1] has 10,000,000 bytes"),
        ({"labels": [" yes", LONG]}, "label_not_single_token", "it has 10,000,000 characters"),
        ({"continuations": ["a", LONG]}, "too_long", "continuations[1] has 10,000,000 bytes"),
        ({"query": [1] * 9000, "items": [[1]], "labels": None, "label_token_ids": [1]}, "too_long", "9,000 tokens"),
        ({"query": [1], "items": [[1], [1] * 9000]}, "too_long", "items[1] has 9,000 tokens"),
        ({"query": None, "messages": [{"role": "user", "content": LONG}]}, "too_long", "10,000,004 bytes"),
    ],
)
def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(
    encoder: Encoder, fields: dict[str, object], code: str, says: str
) -> None:
    with pytest.raises(RequestError) as caught:
        encoder.encode(ScoreRequest(**{**FITTING, **fields}))
    assert caught.value.code == code
    assert says in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": "a \ud800"}, "query"),
        ({"items": ["b", "a \ud800"]}, "items"),
        ({"labels": ["\ud800"]}, "labels"),
        ({"labels": None, "continuations": ["\ud800"]}, "continuations"),
        ({"query": None, "messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
    ],
)
def test_a_lone_surrogate_is_the_callers_mistake(encoder: Encoder, fields: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError, match="must be Unicode without lone surrogates") as caught:
        encoder.encode(ScoreRequest(**{**FITTING, **fields}))
    assert (caught.value.code, caught.value.param) == ("invalid_text", param)


def test_many_labels_are_compared_in_no_time(encoder: Encoder) -> None:
    """Each with each would be a thousand million comparisons."""
    ids = list(range(45_000))
    request = ScoreRequest(query=[1], items=[[1]], label_token_ids=ids)
    assert len(encoder.encode(request).labels[0]) == 45_000
    with pytest.raises(RequestError, match="token 7 is given twice"):
        encoder.encode(ScoreRequest(query=[1], items=[[1]], label_token_ids=[*ids, 7]))


def test_the_size_of_texts() -> None:
    assert text_size("abc") == text_size(["a", "bc"]) == text_size({"x": "abc"}) == 3
    assert text_size([{"role": "user", "content": "abc"}]) == 7
    assert text_size([1, 2, 3]) == text_size([[1], [2, 3]]) == 3
    assert text_size(None) == text_size([]) == text_size(5) == 0
