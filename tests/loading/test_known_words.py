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


def test_a_piece_is_kept_when_it_comes_again() -> None:
    asked: list[str] = []
    known = KnownWords()
    for text in ("one", "one", "one two  3", "one two  3", "one two  3"):
        assert known.encode(text, counting(asked)) == list(map(ord, text))
    assert asked == ["one", "one", " two  3", " two  3"]


def test_a_new_text_is_left_to_the_tokenizer_and_learnt_in_parts() -> None:
    asked: list[str] = []
    known = KnownWords()
    words = [f"w{number}" for number in range(3 * MAX_NEW)]
    text = " ".join(words)
    assert known.encode(text, counting(asked), learn=False) is None
    assert known.encode(text, counting(asked)) is None
    assert not asked, "what comes once is not worth it"
    times = 0
    while (ids := known.encode(text, counting(asked))) is None:
        times += 1
        assert len(asked) <= times * MAX_NEW
    assert ids == list(map(ord, text))
    asked.clear()
    while len(known) < len(words):
        assert known.encode(text, counting(asked)) == ids
    assert known.encode(text, counting(asked), learn=False) == ids
    assert len(asked) == len(set(asked))


def test_long_pieces_are_not_kept_and_all_is_forgotten_when_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onepass.loading.known_words.MAX_PIECES", 3)
    monkeypatch.setattr("onepass.loading.known_words.MAX_SEEN", 5)
    known = KnownWords()
    long = "x" * (MAX_PIECE_CHARS + 1)
    for _ in range(3):
        assert known.encode(long, counting([])) in (None, list(map(ord, long)))
    assert len(known) == 0
    for text in ("a", "c", "d", "a", "c", "d", "e", "e"):
        assert known.encode(text, counting([])) == list(map(ord, text))
        assert len(known) <= 3
    assert len(known) > 0


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
