"""The joining rule in text: BOS on the query only, nothing after it, items as they are."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors

from checkpoints import make_tokenizer
from onepass.errors import BadCheckpoint
from onepass.loading.tokenizer import TextTokenizer


@pytest.fixture(scope="module")
def plain(checkpoint: Callable[[str], Path]) -> TextTokenizer:
    return TextTokenizer.from_file(checkpoint("qwen3") / "tokenizer.json")


@pytest.fixture(scope="module")
def beginning(checkpoint: Callable[[str], Path]) -> TextTokenizer:
    return TextTokenizer.from_file(checkpoint("llama2") / "tokenizer.json")


def test_a_query_begins_with_bos_where_the_tokenizer_says_so(plain: TextTokenizer, beginning: TextTokenizer) -> None:
    text = "The quick brown fox"
    assert plain.encode_query(text) == plain.encode_item(text)
    assert beginning.encode_query(text) == [*beginning.encode_item("<s>"), *beginning.encode_item(text)]


def test_what_a_tokenizer_puts_at_the_end_is_left_out() -> None:
    """After EOS there is no next token to ask for."""
    tokenizer, _ = make_tokenizer("llama2")
    begin, end = (tokenizer.token_to_id(token) for token in ("<s>", "</s>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", begin), ("</s>", end)]
    )
    wrapped = TextTokenizer(tokenizer)
    assert wrapped.encode_query("yes no") == [begin, *wrapped.encode_item("yes no")]
    assert end not in wrapped.encode_query("yes no")


def test_special_tokens_that_the_caller_wrote_are_kept(beginning: TextTokenizer) -> None:
    end = beginning.encode_item("</s>")
    assert len(end) == 1
    assert beginning.encode_query("yes</s>")[-1:] == end
    assert beginning.encode_item("yes</s>")[-1:] == end


def test_items_at_once_are_items_one_by_one(beginning: TextTokenizer) -> None:
    texts = ["", " yes", "São Paulo and 東京", "<s>", " the lazy dog\n"]
    assert beginning.encode_items(texts) == [beginning.encode_item(text) for text in texts]


def test_truncation_and_padding_of_the_file_are_switched_off() -> None:
    """A tokenizer.json may carry both; a query would be cut without a word."""
    tokenizer, _ = make_tokenizer("qwen3")
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=16)
    wrapped = TextTokenizer(Tokenizer.from_str(tokenizer.to_str()))
    text = "The quick brown fox jumps over the lazy dog"
    assert len(wrapped.encode_query(text)) > 4
    assert wrapped.decode(wrapped.encode_query(text)) == text
    assert wrapped.encode_items([" yes", text])[0] == wrapped.encode_item(" yes")


def test_ids_decode_to_the_text(plain: TextTokenizer) -> None:
    text = "Zürich, São Paulo and 東京 <|im_start|>"
    assert plain.decode(plain.encode_item(text)) == text


def test_a_token_is_shown_as_a_person_would_write_it(plain: TextTokenizer) -> None:
    (yes,) = plain.encode_item(" yes")
    assert plain.token(yes) == " yes"
    (part, *_) = plain.encode_item("東")
    assert "�" not in plain.token(part)
    assert plain.token(10**6) == "<1000000>"


def test_kind_and_size_are_told(plain: TextTokenizer) -> None:
    assert plain.kind == "BPE"
    assert plain.vocab_size > 256


@pytest.mark.parametrize("text", ["", "{}", "not json", '{"model": {"type": "Magic"}}'])
def test_an_unreadable_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(BadCheckpoint, match=r"tokenizer\.json must be a `tokenizers` file"):
        TextTokenizer.from_file(tmp_path / "tokenizer.json")
