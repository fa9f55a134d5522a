"""Words that are looked up give the tokens of the whole text, whatever stands between them."""

from collections.abc import Callable
from random import Random

import pytest
from tokenizers import Tokenizer

from checkpoints import make_tokenizer
from onepass.loading.known_words import MAX_NEW, MAX_PIECE_CHARS, KnownWords
from onepass.loading.tokenizer import LOOKED_UP_CHARS, TextTokenizer, UnknownText

PARTS = (
    *("the", "river", "it's", "Don't", "2024", "3.14", "(see", "a)", "", "\n", "\t", "x\n", "\ny", "é", "e\u0301"),
    *("日本語", "<|im_end|>", "<|im_start|>user\n", "<|endoftext|>", "'s", "'re", "\u00a0", "\u2003", "\x1c", "😀"),
    *("\r\n", "=>", "\u0301", "a\u0301b", "__init__", "--", "1a", "a1", "\x85", "\u200b", "Ⅷ", "½", "\x00", "’s"),
)
SPACES = (*[" "] * 8, "", "  ", "\n", " \n", "\t ")
SENTENCE = "The quick brown fox jumps over the lazy dog and runs away from the river bank."


@pytest.fixture(params=["qwen3", "llama3"])
def tokenizer(request: pytest.FixtureRequest) -> TextTokenizer:
    return TextTokenizer(make_tokenizer(request.param)[0])


def test_looked_up_texts_have_the_tokens_of_the_whole_text(tokenizer: TextTokenizer) -> None:
    whole, random = whole_of(tokenizer), Random(0)
    for _ in range(3000):
        text = "".join(random.choice(PARTS) + random.choice(SPACES) for _ in range(random.randrange(1, 24)))
        assert tokenizer.encode_item(text) == whole(text), text
        assert tokenizer.encode_items([text, text[1:]]) == [whole(text), whole(text[1:])], text
    assert len(tokenizer._words) > 500


def test_a_query_begins_with_what_the_tokenizer_puts_there_once(tokenizer: TextTokenizer) -> None:
    first = tokenizer.encode_query(SENTENCE)
    for text in (SENTENCE, SENTENCE, ""):
        assert tokenizer.encode_query(text) == tokenizer._tokenizer.encode(text, add_special_tokens=True).ids
    assert tokenizer.encode_query(SENTENCE) == first


def test_a_piece_is_tokenised_once() -> None:
    asked: list[str] = []
    known = KnownWords()
    one, two, three, four = ("a" * 40, "b" * 40, "c" * 40, "d" * 40)
    text = f"{one} {two}  {three} 4 {four}"
    assert known.encode(text, counting(asked)) == list(map(ord, text))
    assert asked == [one, f" {two}  {three} 4", f" {four}"]
    text = f"{one} {four} {four}"
    assert known.encode(text, counting(asked)) == list(map(ord, text))
    assert len(asked) == 3


def test_a_new_text_is_left_to_the_tokenizer_and_learnt_in_parts() -> None:
    asked: list[str] = []
    known = KnownWords()
    text = " ".join(f"w{number:031}" for number in range(3 * MAX_NEW))
    assert known.encode(text, counting(asked), learn=False) is None
    assert not asked
    for times in (1, 2):
        assert known.encode(text, counting(asked)) is None
        assert len(asked) == times * MAX_NEW
    assert known.encode(text, counting(asked)) == list(map(ord, text))


def test_long_pieces_are_not_kept_and_all_is_forgotten_when_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onepass.loading.known_words.MAX_PIECES", 3)
    known = KnownWords()
    long = "x" * (MAX_PIECE_CHARS + 1)
    assert known.encode(long, counting([])) == list(map(ord, long))
    assert len(known) == 0
    for text in ("a" * 40 + " b", "c" * 40 + " d", "a" * 40 + " b"):
        assert known.encode(text, counting([])) == list(map(ord, text))
        assert 0 < len(known) <= 3


def test_a_quick_tokenizer_refuses_what_it_would_have_to_tokenise(tokenizer: TextTokenizer) -> None:
    quick = tokenizer.quick()
    text = SENTENCE.replace(".", "")
    with pytest.raises(UnknownText):
        quick.encode_item(text)
    while tokenizer._words.encode(text, tokenizer._encode_piece) is None:
        pass
    assert quick.encode_item(text) == whole_of(tokenizer)(text)
    assert quick.encode_items([text]) == [whole_of(tokenizer)(text)]
    with pytest.raises(UnknownText):
        quick.encode_item(text + " the" * (LOOKED_UP_CHARS // 4))


def test_a_tokenizer_that_cannot_cut_texts_looks_nothing_up() -> None:
    inner: Tokenizer = make_tokenizer("qwen3")[0]
    inner.add_tokens(["lazy dog"])  # lies across a boundary
    tokenizer = TextTokenizer(inner)
    for _ in range(3):
        assert tokenizer.encode_item(SENTENCE) == whole_of(tokenizer)(SENTENCE)
    assert inner.token_to_id("lazy dog") in tokenizer.encode_item(SENTENCE)
    assert len(tokenizer._words) == 0
    with pytest.raises(UnknownText):
        tokenizer.quick().encode_item(SENTENCE)


def whole_of(tokenizer: TextTokenizer) -> Callable[[str], list[int]]:
    return lambda text: list(tokenizer._tokenizer.encode(text, add_special_tokens=False).ids)


def counting(asked: list[str]) -> Callable[[str], list[int]]:
    """Characters as tokens."""

    def encode(piece: str) -> list[int]:
        asked.append(piece)
        return list(map(ord, piece))

    return encode
