"""Cutting long texts: the parts have the tokens of the whole, and nothing that fits is refused, by any tokenizer."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from onepass.loading.gguf.tokenizer import LLAMA3, QWEN2, SPLITTINGS
from onepass.loading.model import open_model
from onepass.loading.text_bounds import TextBounds, alternatives, byte_letters
from onepass.loading.tokenizer import TextTokenizer, TextTooLong

QWEN2_HUB = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = ["word", " word", "12345", " 7", "'s", "'LL", "don't", "a", "I", " I", "<|im_start|>", "<|im_end|>", "東京"]
SIGNS = ["  ", " ", "\n", "\r\n", "\n\n ", "\t", "!", " !", "...", "\x04", "\u00a0", "\u200b", "😀"]
COMPOSED = ["é", "e\u0301", "\u1112\u1161\u11ab", "\u0301"]
PARTS = st.sampled_from([*WORDS, *SIGNS, *COMPOSED])
TEXTS = st.one_of(st.text(max_size=80), st.lists(PARTS, max_size=60).map("".join))


def byte_level(pattern: str | None, normalizer: object = None) -> Tokenizer:
    """The real vocabulary of SmolLM2 behind another pre-tokenizer, in Qwen's and Llama's manner."""
    tokenizer = Tokenizer.from_str(open_model("smollm2-135m").tokenizer.to_json())
    tokenizer.normalizer = normalizer
    split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, byte_level])
    return tokenizer


@pytest.fixture(scope="module")
def tokenizers(smollm2_gguf: Path) -> dict[str, TextTokenizer]:
    made = {
        "qwen": byte_level(QWEN2, normalizers.NFC()),
        "qwen from the hub": byte_level(QWEN2_HUB, normalizers.NFC()),
        "llama 3": byte_level(LLAMA3),
        "gpt-2": byte_level(None),
    }
    own = {"smollm2": open_model(str(smollm2_gguf)).tokenizer}
    return own | {name: TextTokenizer(tokenizer) for name, tokenizer in made.items()}


NAMES = ["smollm2", "qwen", "qwen from the hub", "llama 3", "gpt-2"]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=80, deadline=None)
@given(text=TEXTS, start=st.integers(0, 200))
def test_a_text_cut_at_a_boundary_keeps_its_tokens(
    tokenizers: dict[str, TextTokenizer], name: str, text: str, start: int
) -> None:
    tokenizer = tokenizers[name]
    assert tokenizer.bounds.has_boundaries
    whole = tokenizer.encode_item(text)
    for cut in (tokenizer.bounds.boundary_from(text, start), tokenizer.bounds.boundary_up_to(text, start)):
        if cut is not None:
            assert 0 < cut < len(text)
            assert tokenizer.encode_item(text[:cut]) + tokenizer.encode_item(text[cut:]) == whole


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=50, deadline=None)
@given(text=TEXTS)
def test_no_text_is_refused_that_fits(tokenizers: dict[str, TextTokenizer], name: str, text: str) -> None:
    tokenizer = tokenizers[name]
    count = len(tokenizer.encode_item(text))
    kept = text.translate(dict.fromkeys(map(ord, tokenizer.bounds.dropped)))
    assert len(kept.encode()) <= tokenizer.bounds.max_bytes(count)
    if len(text.encode()) <= 2 * tokenizer.bounds.max_bytes(count):
        assert tokenizer.bounds.exceeds(text, count) is None


def test_boundaries_are_found_from_both_ends(tokenizers: dict[str, TextTokenizer]) -> None:
    bounds = tokenizers["smollm2"].bounds
    text = "one two  three. four 5 six"
    cuts = {cut for start in range(len(text)) if (cut := bounds.boundary_from(text, start)) is not None}
    assert cuts == {text.index(" two"), text.index(" four"), text.index(" six")}
    back = {bounds.boundary_up_to(text, end) for end in range(len(text) + 1)}
    assert back - {None} == cuts
    long = "x" * 300_000 + " word" + "y" * 300_000
    assert bounds.boundary_from(long, 10) == bounds.boundary_up_to(long, 600_000) == 300_000


def test_long_texts_are_tokenised_in_pieces_and_have_the_same_tokens(tokenizers: dict[str, TextTokenizer]) -> None:
    for tokenizer in tokenizers.values():
        text = "A line of words, 12 of them; it's not more.\n  And 東京 e\u0301!! " * 3000
        whole = list(tokenizer._tokenizer.encode(text, add_special_tokens=False).ids)
        assert tokenizer.encode_item(text) == whole
        assert tokenizer.encode_query(text) == list(tokenizer._tokenizer.encode(text).ids)
        assert tokenizer.encode_items(["a", text, "b"])[1] == whole


def test_a_text_that_cannot_fit_is_refused_by_its_bytes_or_as_soon_as_that_is_sure(
    tokenizers: dict[str, TextTokenizer],
) -> None:
    tokenizer = tokenizers["smollm2"]
    limit = 1000
    with pytest.raises(TextTooLong, match=r"2,000,000 bytes; the limit is 1,000 tokens, which have at most 162,000"):
        tokenizer.encode_item("a" * 2_000_000, limit)
    pieces = []
    with pytest.raises(TextTooLong, match="more than") as caught:
        tokenizer.checked(lambda: pieces.append(1)).encode_items(["b", "word " * 30_000], limit)
    assert caught.value.number == 1
    assert len(pieces) == 1, "the first piece says it already"


def test_a_check_stops_tokenising_between_pieces(tokenizers: dict[str, TextTokenizer]) -> None:
    class Stop(Exception):
        pass

    calls: list[int] = []

    def stop_at_third() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise Stop

    with pytest.raises(Stop):
        tokenizers["smollm2"].checked(stop_at_third).encode_item("word " * 100_000)
    calls.clear()
    with pytest.raises(Stop):
        tokenizers["smollm2"].checked(stop_at_third).encode_items(["word " * 1000] * 100)


def without_boundaries() -> dict[str, Tokenizer]:
    bytes_only = models.BPE(vocab={letter: i for i, letter in enumerate(byte_letters())}, merges=[])

    def made(model: models.Model = bytes_only, pre_tokenizer: object = None, normalizer: object = None) -> Tokenizer:
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    across, greedy = made(), made()
    across.add_tokens(["two words"])
    greedy.add_tokens([AddedToken("<mask>", lstrip=True)])
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁": 256}
    sentencepiece = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    sentencepiece.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return {
        "a prefix space": made(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
        "an unknown pattern": made(
            pre_tokenizer=pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(r"\w+ \w+|\s+"), "isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False),
                ]
            )
        ),
        "no pattern": made(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
        "a normalizer that strips": made(normalizer=normalizers.Strip()),
        "a token across": across,
        "a token that takes spaces": greedy,
        "sentencepiece": sentencepiece,
    }


@pytest.mark.parametrize("name", without_boundaries())
def test_other_tokenizers_are_never_cut(name: str) -> None:
    tokenizer = TextTokenizer(without_boundaries()[name])
    assert not tokenizer.bounds.has_boundaries
    assert tokenizer.bounds.boundary_from("one two three", 0) is None
    assert tokenizer.bounds.boundary_up_to("one two three", 9) is None
    text = "one two words " * 5000
    assert tokenizer.encode_item(text) == list(tokenizer._tokenizer.encode(text, add_special_tokens=False).ids)
    with pytest.raises(TextTooLong, match="bytes"):
        tokenizer.encode_item("a" * 200_000, 5)


def test_how_many_bytes_a_token_can_stand_for() -> None:
    made = without_boundaries()
    assert TextBounds.of(made["no pattern"]).max_token_bytes == 1
    assert TextBounds.of(made["sentencepiece"]).max_token_bytes == len("<0x00>")
    assert TextBounds.of(made["a token across"]).max_token_bytes == len("two words")
    assert TextBounds.of(made["a normalizer that strips"]).max_token_bytes == 16
    lacking = {letter: i for i, letter in enumerate(byte_letters()) if letter not in "ab"}
    tokenizer = Tokenizer(models.BPE(vocab=lacking, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bounds = TextBounds.of(tokenizer)
    assert (bounds.max_token_bytes, bounds.dropped) == (1, "ab")
    assert bounds.exceeds("abc" * 10, 20) is None, "30 bytes, 10 of which are kept"
    assert bounds.exceeds("abc" * 100, 20) == 300
    assert bounds.exceeds("cd" * 15, 20) == 30


def test_every_pattern_of_gguf_files_is_known() -> None:
    for splitting in SPLITTINGS.values():
        steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splitting.patterns]
        tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(byte_letters())}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        assert TextBounds.of(tokenizer).has_boundaries, splitting.patterns
    assert alternatives(r"(?:a|b)|[|]\||c") == [r"(?:a|b)", r"[|]\|", "c"]
