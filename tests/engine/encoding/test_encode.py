"""Requests become token ids by the joining rule; every mistake a caller can make has its code, field and message."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onepass.api import MODES, ScoreRequest
from onepass.engine.encoding.encode import Encoder
from onepass.errors import RequestError, TooLong
from onepass.loading.tokenizer import TextTokenizer

VOCAB = 600
LIMIT = 64


def encoder_of(folder: Path, max_position: int = LIMIT) -> Encoder:
    vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
    return Encoder(TextTokenizer.from_file(folder / "tokenizer.json"), vocab, max_position)


@pytest.fixture(scope="module")
def encoder(checkpoint: Callable[[str], Path]) -> Encoder:
    """A tokenizer without BOS."""
    return encoder_of(checkpoint("qwen3"))


@pytest.fixture(scope="module")
def with_begin(checkpoint: Callable[[str], Path]) -> Encoder:
    """A tokenizer that begins texts with <s>."""
    return encoder_of(checkpoint("llama2"))


def by_ids(**changes: Any) -> ScoreRequest:
    return ScoreRequest(**{"query": [5, 6], "items": [[7], [8, 9]], "label_token_ids": [1, 2], **changes})


def by_text(**changes: Any) -> ScoreRequest:
    return ScoreRequest(**{"query": "The film", "items": [" is good", " is bad"], "labels": [" yes", " no"], **changes})


def refused(encoder: Encoder, request: ScoreRequest) -> RequestError:
    with pytest.raises(RequestError) as caught:
        encoder.encode(request)
    return caught.value


def without_addresses(value: object) -> str:
    """The same name in every process that collects the tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


@pytest.mark.parametrize(
    ("changes", "code", "param", "says"),
    [
        ({"query": None}, "missing_query", "query", "a string or a list of token ids"),
        ({"query": []}, "empty_query", "query", "at least one token; got none"),
        ({"query": np.array([], np.int64)}, "empty_query", "query", "got none"),
        ({"query": 7}, "invalid_query_type", "query", "got 7"),
        ({"query": {"text": 1}}, "invalid_query_type", "query", "got {'text': 1}"),
        ({"query": b"abc"}, "invalid_query_type", "query", "got b"),
        ({"query": np.array(7)}, "invalid_query_type", "query", "list of token ids"),
        ({"query": ["a", "b"]}, "invalid_token_id_type", "query", "got 'a'"),
        ({"query": [[5, 6]]}, "invalid_token_id_type", "query", "whole numbers"),
        ({"query": [5, True]}, "invalid_token_id_type", "query", "got true"),
        ({"query": [np.bool_(True)]}, "invalid_token_id_type", "query", "True"),
        ({"query": np.array([True, False])}, "invalid_token_id_type", "query", "True"),
        ({"query": [5.0]}, "invalid_token_id_type", "query", "got 5.0"),
        ({"query": np.array([5.0])}, "invalid_token_id_type", "query", "5.0"),
        ({"query": [None]}, "invalid_token_id_type", "query", "got null"),
        ({"query": [-1]}, "token_id_out_of_range", "query", "got -1"),
        ({"query": [10**30]}, "token_id_out_of_range", "query", "got 1000000"),
        ({"query": np.array([2**63], np.uint64)}, "token_id_out_of_range", "query", "got 9223372036854775808"),
        ({"items": None}, "missing_items", "items", "required"),
        ({"items": 7}, "invalid_items_type", "items", "got 7"),
        ({"items": {"a": 1}}, "invalid_items_type", "items", "got {'a': 1}"),
        ({"items": iter([[1]])}, "invalid_items_type", "items", "must be a list"),
        ({"items": np.array(7)}, "invalid_items_type", "items", "must be a list"),
        ({"items": [5, 6]}, "invalid_items_type", "items[0]", "got 5"),
        ({"items": [[5], None]}, "invalid_items_type", "items[1]", "got null"),
        ({"items": [[5], b"ab"]}, "invalid_items_type", "items[1]", "got b"),
        ({"items": [[5], "text"]}, "mixed_input_types", "items", "items[1] differs"),
        ({"items": ["text"]}, "mixed_input_types", "items", "lists of token ids"),
        ({"items": [[5], [True]]}, "invalid_token_id_type", "items[1]", "got true"),
        ({"items": [[5], [600]]}, "token_id_out_of_range", "items[1]", "got 600"),
        ({"label_token_ids": None}, "missing_labels", "labels", "required"),
        ({"label_token_ids": []}, "empty_label_token_ids", "label_token_ids", "must not be empty"),
        ({"label_token_ids": [[1], []]}, "empty_label_token_ids", "label_token_ids[1]", "must not be empty"),
        ({"label_token_ids": 3}, "invalid_token_id_type", "label_token_ids", "must be a list"),
        ({"label_token_ids": "12"}, "invalid_token_id_type", "label_token_ids", "must be a list"),
        ({"label_token_ids": np.array(3)}, "invalid_token_id_type", "label_token_ids", "must be a list"),
        ({"label_token_ids": [True, 2]}, "invalid_token_id_type", "label_token_ids", "got true"),
        ({"label_token_ids": [np.bool_(False)]}, "invalid_token_id_type", "label_token_ids", "False"),
        ({"label_token_ids": [1.0]}, "invalid_token_id_type", "label_token_ids", "got 1.0"),
        ({"label_token_ids": [None]}, "invalid_token_id_type", "label_token_ids", "got null"),
        ({"label_token_ids": [1, 2, 1]}, "duplicate_label", "label_token_ids", "token 1 is given twice"),
        ({"label_token_ids": [[1, 2], [3, 3]]}, "duplicate_label", "label_token_ids[1]", "token 3 is given twice"),
        ({"label_token_ids": [-4]}, "negative_token_id", "label_token_ids", "got -4"),
        ({"label_token_ids": [VOCAB]}, "token_id_exceeds_vocab", "label_token_ids", "got 600"),
        ({"label_token_ids": [10**30]}, "token_id_exceeds_vocab", "label_token_ids", "got 10000000"),
        ({"label_token_ids": [[1], [2], [3]]}, "label_count_mismatch", "label_token_ids", "each of 2 items; got 3"),
        ({"label_token_ids": [[1], 2]}, "label_count_mismatch", "label_token_ids", "one list for each of 2 items"),
        ({"labels": [" yes"]}, "conflicting_labels", "labels", "not both"),
        ({"labels": " yes", "label_token_ids": None}, "invalid_labels_type", "labels", "a list of strings"),
        ({"labels": [5], "label_token_ids": None}, "invalid_labels_type", "labels", "got 5"),
        ({"labels": [], "label_token_ids": None}, "empty_label_token_ids", "labels", "must not be empty"),
        ({"temperature": 0}, "invalid_temperature", "temperature", "above 0; got 0"),
        ({"temperature": -1.0}, "invalid_temperature", "temperature", "above 0"),
        ({"temperature": float("nan")}, "invalid_temperature", "temperature", "finite"),
        ({"temperature": float("inf"), "apply_softmax": True}, "invalid_temperature", "temperature", "finite"),
        ({"temperature": True}, "invalid_temperature", "temperature", "got true"),
        ({"temperature": "1"}, "invalid_temperature", "temperature", "got '1'"),
        ({"temperature": None}, "invalid_temperature", "temperature", "got null"),
        ({"temperature": 10**400, "apply_softmax": True}, "invalid_temperature", "temperature", "finite"),
        ({"temperature": 2.0}, "invalid_temperature", "temperature", "needs apply_softmax"),
        ({"mode": "fastest"}, "invalid_mode", "mode", f"one of {', '.join(MODES)}; got 'fastest'"),
        ({"mode": ["extend"]}, "invalid_mode", "mode", "got ['extend']"),
        ({"apply_softmax": 1}, "invalid_apply_softmax", "apply_softmax", "got 1"),
        ({"item_first": "no"}, "invalid_item_first", "item_first", "got 'no'"),
        ({"label_mass": None}, "invalid_label_mass", "label_mass", "got null"),
        ({"delimiter_token_id": True}, "invalid_token_id_type", "delimiter_token_id", "got true"),
        ({"delimiter_token_id": 600}, "token_id_out_of_range", "delimiter_token_id", "got 600"),
        ({"continuations": []}, "invalid_continuations", "continuations", "non-empty list"),
        ({"continuations": " yes"}, "invalid_continuations", "continuations", "non-empty list; got ' yes'"),
        ({"continuations": [[1], []]}, "invalid_continuations", "continuations", "at least one token"),
        ({"continuations": [[1], 5]}, "invalid_continuations", "continuations[1]", "got 5"),
        ({"continuations": [[1], [True]]}, "invalid_token_id_type", "continuations[1]", "got true"),
        ({"continuations": [["a"], [1]]}, "invalid_continuations", "continuations", "continuations[1] is not"),
        ({"continuations": [[[1]], []]}, "invalid_continuations", "continuations", "[1] must hold at least one text"),
        ({"continuations": [[[1]], [[2], []]]}, "invalid_continuations", "continuations", "[1][1] must have at least"),
        ({"continuations": [[[1]]]}, "continuation_count_mismatch", "continuations", "per item; items: 2, lists: 1"),
        ({"query": [5] * 65}, "too_long", "query", "65 tokens; the limit is 64"),
        ({"items": [[7], [8] * 63]}, "too_long", "items", "items[1] together have 65 tokens"),
        ({"continuations": [[1], [2] * 62]}, "too_long", "items", "items[1] together have 65 tokens"),
        ({"continuations": [[[1] * 63], [[2]]]}, "too_long", "items", "items[0] together have"),
        ({"items": [[7] * 63], "item_first": True}, "too_long", "items", "items[0] together have 65 tokens"),
        ({"items": [[7] * 62], "delimiter_token_id": 4}, "too_long", "items", "65 tokens"),
    ],
    ids=without_addresses,
)
def test_a_mistake_is_named(encoder: Encoder, changes: dict[str, Any], code: str, param: str, says: str) -> None:
    error = refused(encoder, by_ids(**changes))
    assert (error.code, error.param) == (code, param)
    assert says in str(error)
    assert isinstance(error, TooLong) == (code == "too_long")


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"query": ""}, "empty_query", "query"),
        ({"items": [[5]]}, "mixed_input_types", "items"),
        ({"items": [" good", [5]]}, "mixed_input_types", "items"),
        ({"items": [" good", 5]}, "invalid_items_type", "items[1]"),
        ({"items": [None]}, "invalid_items_type", "items[0]"),
        ({"labels": [" yes", " yes"]}, "duplicate_label", "labels"),
        ({"labels": [""]}, "label_not_single_token", "labels"),
        ({"continuations": [""]}, "invalid_continuations", "continuations"),
    ],
    ids=without_addresses,
)
def test_a_mistake_in_text_is_named(encoder: Encoder, changes: dict[str, Any], code: str, param: str) -> None:
    error = refused(encoder, by_text(**changes))
    assert (error.code, error.param) == (code, param)


def test_a_label_of_several_tokens_is_refused_with_the_tokens_it_becomes(encoder: Encoder) -> None:
    error = refused(encoder, by_text(labels=[" yes", " yes no"]))
    assert error.code == "label_not_single_token"
    assert encoder.tokenizer is not None
    yes, no = encoder.tokenizer.encode_item(" yes no")
    assert f"becomes 2: ' yes' ({yes}), ' no' ({no})" in str(error)


def test_the_longest_request_that_fits_is_taken(encoder: Encoder) -> None:
    encoder.encode(by_ids(query=[5] * 64, items=[[]]))
    encoder.encode(by_ids(query=[5] * 60, items=[[7] * 4]))
    # The last token of a continuation is only looked up, never computed.
    encoder.encode(by_ids(query=[5] * 60, items=[[7] * 2], continuations=[[1, 2, 3]]))


def test_a_model_without_tokenizer_takes_ids_only() -> None:
    encoder = Encoder(None, VOCAB, LIMIT)
    assert encoder.encode(by_ids()).context == (5, 6)
    for request in (by_text(), by_ids(labels=[" yes"], label_token_ids=None), by_ids(continuations=["text"])):
        assert refused(encoder, request).code == "no_tokenizer"


def test_query_and_items_are_encoded_apart(encoder: Encoder) -> None:
    encoded = encoder.encode(by_text())
    assert encoder.tokenizer is not None
    assert list(encoded.context) == encoder.tokenizer.encode_item("The film")
    assert [list(item) for item in encoded.items] == [encoder.tokenizer.encode_item(t) for t in (" is good", " is bad")]
    assert encoded.labels == ((encoder.tokenizer.encode_item(" yes")[0], encoder.tokenizer.encode_item(" no")[0]),) * 2


def test_bos_is_put_on_the_query_only(with_begin: Encoder) -> None:
    encoded = with_begin.encode(by_text(continuations=[" yes no"]))
    assert with_begin.tokenizer is not None
    begin = with_begin.tokenizer.encode_item("<s>")
    assert len(begin) == 1
    assert list(encoded.context) == begin + with_begin.tokenizer.encode_item("The film")
    for ids in (*encoded.items, *encoded.continuations[0]):
        assert begin[0] not in ids


def test_text_and_ids_mean_the_same_sequence(with_begin: Encoder) -> None:
    text = with_begin.encode(by_text())
    ids = with_begin.encode(
        ScoreRequest(query=text.context, items=text.items, label_token_ids=[list(x) for x in text.labels])
    )
    assert (ids.context, ids.items, ids.labels) == (text.context, text.items, text.labels)


def test_item_first_joins_item_and_query(encoder: Encoder) -> None:
    encoded = encoder.encode(by_ids(item_first=True, items=[[7], [], [8, 9]]))
    assert encoded.context == ()
    assert encoded.items == ((7, 5, 6), (5, 6), (8, 9, 5, 6))


def test_item_first_puts_bos_where_the_query_is(with_begin: Encoder) -> None:
    """Special tokens go on the query only, wherever the query stands."""
    plain, first = with_begin.encode(by_text()), with_begin.encode(by_text(item_first=True))
    assert first.items == tuple(item + plain.context for item in plain.items)


def test_the_delimiter_stands_between_query_and_item(encoder: Encoder) -> None:
    encoded = encoder.encode(by_ids(delimiter_token_id=4))
    assert (encoded.context, encoded.items) == ((5, 6, 4), ((7,), (8, 9)))
    turned = encoder.encode(by_ids(delimiter_token_id=4, item_first=True))
    assert turned.items == ((7, 4, 5, 6), (8, 9, 4, 5, 6))


def test_a_delimiter_inside_content_is_content(encoder: Encoder) -> None:
    encoded = encoder.encode(by_ids(query=[5, 4, 6], items=[[4], [4, 9]], delimiter_token_id=4))
    assert (encoded.context, encoded.items) == ((5, 4, 6, 4), ((4,), (4, 9)))


def test_prompt_tokens_count_the_query_once(encoder: Encoder) -> None:
    assert encoder.encode(by_ids()).prompt_tokens == 5
    assert encoder.encode(by_ids(delimiter_token_id=4)).prompt_tokens == 6
    assert encoder.encode(by_ids(item_first=True)).prompt_tokens == 5


def test_one_string_is_one_item(encoder: Encoder) -> None:
    assert encoder.encode(by_text(items=" is good")).items == encoder.encode(by_text(items=[" is good"])).items


def test_no_items_are_no_mistake(encoder: Encoder) -> None:
    for request in (by_ids(items=[]), by_text(items=()), by_ids(items=np.zeros((0, 3), np.int64))):
        assert encoder.encode(request).items == ()


def test_arrays_and_numpy_integers_are_ids(encoder: Encoder) -> None:
    plain = encoder.encode(by_ids(items=[[7, 8], [9, 10]]))
    request = by_ids(
        query=np.array([5, 6], np.uint16),
        items=np.array([[7, 8], [9, 10]], np.int32),
        label_token_ids=np.array([1, 2]),
    )
    arrays = encoder.encode(request)
    assert (arrays.context, arrays.items, arrays.labels) == (plain.context, plain.items, plain.labels)
    assert all(type(token) is int for ids in (arrays.context, *arrays.items, *arrays.labels) for token in ids)
    assert encoder.encode(by_ids(query=[np.int64(5), 6])).context == (5, 6)


def test_items_may_have_label_sets_of_their_own(encoder: Encoder) -> None:
    assert encoder.encode(by_ids(label_token_ids=[[1], [2, 3, 4]])).labels == ((1,), (2, 3, 4))


def test_a_label_given_twice_is_named_as_it_was_typed(encoder: Encoder) -> None:
    message = str(refused(encoder, by_text(labels=[" no", " yes", " yes"])))
    assert message == "labels must be distinct; ' yes' is given twice"


def test_a_label_of_several_tokens_is_told_what_to_use_instead(encoder: Encoder) -> None:
    message = str(refused(encoder, by_text(labels=[" zebra crossing"])))
    assert message.startswith("label ' zebra crossing' must be one token; it becomes ")
    assert message.endswith("; texts of several tokens are scored as continuations (--continuations in the command)")


def test_each_item_may_have_continuations_of_its_own(encoder: Encoder, with_begin: Encoder) -> None:
    encoded = encoder.encode(by_ids(label_token_ids=None, continuations=[[[1, 2]], [[3], [4]]]))
    assert encoded.continuations == (((1, 2),), ((3,), (4,)))
    texts = with_begin.encode(by_text(items=[" good", " bad"], continuations=[[" yes no"], [" no"]]))
    assert with_begin.tokenizer is not None
    assert texts.continuations == tuple((tuple(with_begin.tokenizer.encode_item(t)),) for t in (" yes no", " no"))


def test_continuations_need_no_labels(encoder: Encoder) -> None:
    encoded = encoder.encode(by_ids(label_token_ids=None, continuations=[[1, 2], [3]]))
    assert (encoded.labels, encoded.continuations) == (((), ()), (((1, 2), (3,)),) * 2)


def test_a_kept_context_stands_for_the_query(encoder: Encoder) -> None:
    encoded = encoder.encode(by_ids(query=None), context=(50, 51))
    assert encoded.context == (50, 51)
    text = encoder.encode(by_text(query=None), context=(50, 51))
    assert text.context == (50, 51)


def test_a_kept_context_and_a_query_are_not_given_together(encoder: Encoder) -> None:
    """Ignoring one of them without a word would score something else than was asked for."""
    with pytest.raises(RequestError, match="query") as caught:
        encoder.encode(by_ids(), context=(50, 51))
    assert caught.value.code == "conflicting_query"


def test_a_kept_context_cannot_come_after_the_item(encoder: Encoder) -> None:
    with pytest.raises(RequestError, match="item_first cannot use a kept context"):
        encoder.encode(by_ids(query=None, item_first=True), context=(50, 51))


@pytest.mark.parametrize(
    ("query", "code"),
    [
        (None, "missing_query"),
        ("", "empty_query"),
        ([], "empty_query"),
        ([5] * 65, "too_long"),
        (5, "invalid_query_type"),
    ],
    ids=without_addresses,
)
def test_a_context_alone_is_checked_like_a_query(encoder: Encoder, query: object, code: str) -> None:
    with pytest.raises(RequestError) as caught:
        encoder.encode_context(query)
    assert caught.value.code == code


def test_every_library_code_of_the_http_contract_is_raised_here() -> None:
    """The table above against the contract's list of 400 codes, less those of JSON itself."""
    contract = """\
        missing_query empty_query invalid_query_type missing_items invalid_items_type mixed_input_types
        invalid_token_id_type token_id_out_of_range missing_labels empty_label_token_ids duplicate_label
        negative_token_id token_id_exceeds_vocab label_not_single_token invalid_temperature too_long"""
    tested = set(re.findall(r'"([a-z_]+)"', Path(__file__).read_text(encoding="utf-8")))
    assert set(contract.split()) <= tested
