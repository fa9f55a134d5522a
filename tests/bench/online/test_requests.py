"""What a driver sends: distinct requests that never change under a number, in ids or English, alone or mixed."""

from collections import Counter
from dataclasses import replace
from typing import Any

import orjson
import pytest

from checkpoints import make_tokenizer
from onepass.bench.online.requests import Labels, MixPart, Requests
from onepass.bench.online.text import English, pieces
from onepass.bench.workloads import Shape
from onepass.errors import ConfigError
from onepass.loading.tokenizer import TextTokenizer

TINY = MixPart("tiny", Shape(40, 8, 4, 8))
VOCABULARY = 600


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(make_tokenizer("qwen3")[0])


@pytest.fixture(scope="module")
def english(tokenizer: TextTokenizer) -> English:
    return English({piece: len(ids) for piece, ids in zip(pieces(), tokenizer.encode_items(pieces()), strict=True)})


def sent(requests: Requests, number: int) -> dict[str, Any]:
    return orjson.loads(requests.prepare(number).body)  # type: ignore[no-any-return]


def streams(english: English) -> list[Requests]:
    ids = Requests((MixPart("tiny", Shape(40, 8, 15, 25)),), VOCABULARY, labels=Labels((5, 6)))
    return [ids, replace(ids, english=english)]


def test_every_request_is_distinct_and_comes_again_under_its_number(english: English) -> None:
    for requests in streams(english):
        bodies = [requests.prepare(number).body for number in range(50)]
        queries = {str(sent(requests, number)["query"]) for number in range(50)}
        items = [str(item) for number in range(50) for item in sent(requests, number)["items"]]
        assert len(queries) == 50
        assert len(set(items)) > 0.99 * len(items)
        assert [requests.prepare(number).body for number in range(50)] == bodies
        assert len(set(bodies)) == 50


def test_no_two_queries_begin_alike(english: English, tokenizer: TextTokenizer) -> None:
    """16 shared tokens would be a context hit."""
    requests = streams(english)[1]
    begun = [tuple(tokenizer.encode_query(requests.content(n).query)[:16]) for n in range(200)]
    assert len(set(begun)) == 200


def test_text_has_as_many_tokens_as_the_workload_asks_for(english: English, tokenizer: TextTokenizer) -> None:
    requests = Requests((MixPart("exact", Shape(200, 50, 20, 20)),), VOCABULARY, english=english)
    for number in range(5):
        content = requests.content(number)
        assert abs(len(tokenizer.encode_query(content.query)) - 200) <= 2
        lengths = [len(ids) for ids in tokenizer.encode_items(content.items)]
        assert max(abs(length - 20) for length in lengths) <= 1


def test_text_is_sentences(english: English) -> None:
    text = Requests((MixPart("x", Shape(300, 1, 5, 5)),), VOCABULARY, english=english).content(0).query
    assert text[0].isupper()
    assert text.count(". ") > 3
    assert "  " not in text


def test_item_lengths_vary_as_the_shape_says() -> None:
    items = sent(Requests((TINY,), VOCABULARY), 3)["items"]
    assert len(items) == 8
    assert {len(item) for item in items} <= set(range(4, 9))
    assert len({len(item) for item in items}) > 1


def test_a_repeated_query_stays_while_its_items_change(english: English) -> None:
    cached = MixPart("repeat-query", replace(TINY.shape, cached=True))
    for requests in streams(english):
        first, second = (sent(replace(requests, mix=(cached,)), number) for number in (4, 5))
        assert first["query"] == second["query"]
        assert first["items"] != second["items"]


def test_a_mix_comes_by_its_weights() -> None:
    requests = Requests(
        (MixPart("often", TINY.shape, 3.0), MixPart("rarely", replace(TINY.shape, items=2))), VOCABULARY
    )
    prepared = [requests.prepare(number) for number in range(400)]
    assert 250 < Counter(one.part for one in prepared)["often"] < 350
    assert {one.part: one.num_items for one in prepared} == {"often": 8, "rarely": 2}
    assert requests.name == "often:3,rarely"


def test_the_checksum_tells_what_is_sent_but_not_the_labels(english: English) -> None:
    ids, text = streams(english)
    assert replace(ids, labels=Labels((9,))).checksum == ids.checksum
    others = [text, replace(ids, seed=1), replace(ids, mix=(MixPart("tiny", replace(TINY.shape, items=9)),))]
    assert len({ids.checksum, *(other.checksum for other in others)}) == 4


def test_some_items_are_asked_again_one_at_a_time() -> None:
    requests = Requests((TINY,), VOCABULARY, labels=Labels((5, 6), softmax=True))
    whole, some = sent(requests, 7), orjson.loads(requests.serial(7, [0, 7]))
    assert some == {**whole, "items": [whole["items"][0], whole["items"][7]], "mode": "serial"}
    assert whole["apply_softmax"] is True


def test_unlikely_labels_are_compared_among_themselves() -> None:
    assert Labels.likeliest([7, 8, 9, 10], [[0.1, 0.5, 0.0, 0.2]] * 2) == Labels((8, 10, 7))
    assert Labels.likeliest([7, 8, 9], [[1e-5, 2e-5, 1e-6]]) == Labels((8, 7, 9), softmax=True)


@pytest.mark.parametrize("text", ["small:", "small:x", "small:0", "small:-1"])
def test_a_weight_must_be_above_zero(text: str) -> None:
    with pytest.raises(ConfigError, match="a weight above 0"):
        MixPart.parse(text)
    assert MixPart.parse("home_low:2.5").weight == 2.5
