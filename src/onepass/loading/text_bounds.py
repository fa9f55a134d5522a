"""What is known of a text's tokens before it is tokenised: how many bytes a token can stand for, and where a text can
be cut so that the tokens of the parts are the tokens of the whole.

A cut falls before a space that a letter follows and that follows no other space: "one two| three". The pre-tokenizers
listed here never join a character and the space after it, so each side is split as it is in the whole. The pattern of
GPT-2, and those of Qwen and Llama 3 that came from it, are lists of alternatives; `ALTERNATIVES` has those for which
this holds. A tokenizer with any other part is never cut. Tokenising is `tokenizer`.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

WINDOW_CHARS = 1 << 16  # searched at a time for a boundary, since a search holds the interpreter's lock
COMPOSED_SHRINKS = 3  # NFC makes a text at most so many times shorter in UTF-8: Hangul letters, the Kelvin sign
LEAD_BYTES_SHRINK = 2  # without a token for some first bytes, a character's other bytes remain: at least half of them
UNKNOWN_SHRINKS = 16  # for normalizers of unknown effect, and tokens that take whitespace with them
MAX_DROPPED = 2  # a text of twice the bytes that can fit is refused even if half of it is characters that are dropped
BOUNDARY = re.compile(r"\S(?= [A-Za-z])")  # the cut comes after what is matched
UTF8_BYTES = frozenset((*range(0xC0), *range(0xC2, 0xF5)))
CROSSING = re.compile(r"\S ")  # an added token with this in it may lie across a boundary
WORDS = (r" ?\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+")
ALTERNATIVES = {
    *WORDS,
    *(f"'{letters}" for letters in ("s", "t", "re", "ve", "m", "ll", "d")),
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    "'(?i:[sdmt]|ll|ve|re)",
    "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])",
    *(r"\p{N}", r"\p{N}+", r"\p{N}{1,3}", r" ?\p{N}+", "[0-9][0-9][0-9]", r"[\p{P}\$\+<=>\^~\|]+"),
    *(r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*"),
    *(r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"),
}


@dataclass(frozen=True)
class TextBounds:
    max_token_bytes: int  # no token stands for more bytes of UTF-8
    has_boundaries: bool
    dropped: str = ""  # ASCII characters that the vocabulary has no token for: they become nothing

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "TextBounds":
        normalizer, steps = _state(tokenizer.normalizer), list(_steps(_state(tokenizer.pre_tokenizer)))
        added = list(tokenizer.get_added_tokens_decoder().values())
        strips = any(token.lstrip or token.rstrip for token in added)
        vocabulary = tokenizer.get_vocab(with_added_tokens=False)
        is_bytes = any(step["type"] == "ByteLevel" for step in steps)
        longest = max((len(token) if is_bytes else len(token.encode()) for token in vocabulary), default=1)
        longest = max([longest, *(len(token.content.encode()) for token in added)])
        missing = _missing_bytes(tokenizer, vocabulary, is_bytes)
        dropped = "".join(chr(byte) for byte in missing if byte < 0x80) if is_bytes else ""
        shrinks = _dropping(missing, is_bytes) * _shrinks(normalizer)
        shrinks = UNKNOWN_SHRINKS if strips else min(shrinks, UNKNOWN_SHRINKS)
        return cls(longest * shrinks, has_boundaries(tokenizer), dropped)

    def max_bytes(self, tokens: int) -> int:
        """A text of more bytes, not counting what is dropped, has more than so many tokens."""
        return tokens * self.max_token_bytes

    def exceeds(self, text: str, tokens: int) -> int | None:
        """The text's bytes (of a very long text, its characters), if it is sure to have more than so many tokens or is
        longer than any sensible text that has not."""
        limit = self.max_bytes(tokens)
        if 4 * len(text) <= limit:
            return None
        size = len(text) if len(text) > MAX_DROPPED * limit else utf8_size(text)
        if size > MAX_DROPPED * limit:
            return size
        kept = size - sum(map(text.count, self.dropped)) if size > limit else size
        return size if kept > limit else None

    def boundary_from(self, text: str, start: int, stop: int | None = None) -> int | None:
        """The first place from `start` on, and before `stop`, where the text can be cut."""
        stop = len(text) if stop is None else min(stop, len(text))
        if not self.has_boundaries:
            return None
        for at in range(max(0, start - 1), stop, WINDOW_CHARS):
            # A boundary is three characters, so that windows overlap by two.
            if match := BOUNDARY.search(text, at, min(stop, at + WINDOW_CHARS) + 2):
                return match.start() + 1
        return None

    def boundary_up_to(self, text: str, end: int, stop: int = 0) -> int | None:
        """The last place up to `end`, and after `stop`, where the text can be cut; found in windows from the end."""
        while self.has_boundaries and end > stop:
            begin = max(stop, end - WINDOW_CHARS // 16)
            *_, last = [-1, *(match.start() + 1 for match in BOUNDARY.finditer(text, max(0, begin - 1), end + 2))]
            if last > stop and last <= end:
                return last
            end = begin
        return None


def has_boundaries(tokenizer: Tokenizer) -> bool:
    """Whether texts can be cut at boundaries."""
    normalizer, steps = _state(tokenizer.normalizer), list(_steps(_state(tokenizer.pre_tokenizer)))
    added = list(tokenizer.get_added_tokens_decoder().values())
    plain = normalizer is None or normalizer["type"] == "NFC"
    apart = not any(token.lstrip or token.rstrip or CROSSING.search(token.content) for token in added)
    exact = plain and apart and any(step["type"] == "ByteLevel" for step in steps) and _keeps_boundaries(steps)
    return exact and getattr(tokenizer.model, "dropout", None) is None


def utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _state(part: Any) -> Any:
    """A part of a tokenizer as its JSON."""
    return None if part is None else json.loads(part.__getstate__())


def _steps(pre_tokenizer: Any) -> Iterator[Any]:
    if pre_tokenizer is None:
        return
    if pre_tokenizer["type"] == "Sequence":
        for step in pre_tokenizer["pretokenizers"]:
            yield from _steps(step)
    else:
        yield pre_tokenizer


def _keeps_boundaries(steps: list[Any]) -> bool:
    """Whether every step keeps what is on the two sides of a boundary apart, and one of them cuts there."""
    return all(map(_is_known, steps)) and any(map(_splits_words, steps))


def _is_known(step: Any) -> bool:
    if step["type"] == "ByteLevel":
        return not step["add_prefix_space"]
    if step["type"] == "Split":
        isolated = step["behavior"] == "Isolated" and not step["invert"]
        return isolated and set(alternatives(step["pattern"].get("Regex", ""))) <= ALTERNATIVES
    return bool(step["type"] == "Digits")


def _splits_words(step: Any) -> bool:
    if step["type"] == "ByteLevel":
        return bool(step["use_regex"])
    found = alternatives(step["pattern"].get("Regex", "")) if step["type"] == "Split" else []
    return r"\s+" in found and any(words in found for words in WORDS)


def alternatives(pattern: str) -> list[str]:
    """A regular expression taken apart at its outermost bars."""
    parts, depth, in_class, escaped = [""], 0, False, False
    for char in pattern:
        if char == "|" and not (depth or in_class or escaped):
            parts.append("")
            continue
        if not escaped:
            in_class = char == "[" or (in_class and char != "]")
            depth += 0 if in_class else (char == "(") - (char == ")")
        escaped = char == "\\" and not escaped
        parts[-1] += char
    return parts


def _missing_bytes(tokenizer: Tokenizer, vocabulary: dict[str, int], is_bytes: bool) -> list[int]:
    """Bytes of UTF-8 without a token: they are dropped."""
    if is_bytes:
        return [byte for byte, letter in enumerate(byte_letters()) if letter not in vocabulary and byte in UTF8_BYTES]
    if not getattr(tokenizer.model, "byte_fallback", False):
        return list(UTF8_BYTES)
    return [byte for byte in UTF8_BYTES if f"<0x{byte:02X}>" not in vocabulary]


def _dropping(missing: list[int], is_bytes: bool) -> int:
    """How many times shorter a text becomes by what is dropped, ASCII characters of byte-level vocabularies apart."""
    if not missing or (is_bytes and max(missing) < 0x80):
        return 1
    if is_bytes and not any(0x80 <= byte < 0xC0 for byte in missing):
        return LEAD_BYTES_SHRINK
    return UNKNOWN_SHRINKS


def byte_letters() -> list[str]:
    """The letter that byte-level vocabularies write for each byte: its own if that is visible, else one from 256 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]


def _shrinks(normalizer: Any) -> int:
    """How many times shorter a text can become, in bytes, before it is split."""
    if normalizer is None or normalizer["type"] == "Prepend":
        return 1
    if normalizer["type"] == "NFC":
        return COMPOSED_SHRINKS
    if normalizer["type"] == "Sequence":
        out = 1
        for step in normalizer["normalizers"]:
            out *= _shrinks(step)
        return min(out, UNKNOWN_SHRINKS)
    if normalizer["type"] == "Replace" and "String" in normalizer["pattern"]:
        longer = len(normalizer["content"].encode()) >= len(normalizer["pattern"]["String"].encode())
        return 1 if longer else UNKNOWN_SHRINKS
    return UNKNOWN_SHRINKS
