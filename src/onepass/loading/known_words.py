"""Tokens of the words that a tokenizer has met: a text of known words is looked up, not tokenised.

    "The old river| reached| the coast| in 1987 | …"     text, cut where that changes no token (`text_bounds`)
                    └ kept: its ids are the same in every text

A text comes in pieces from one cut to the next. Most are single words, which one dictionary holds without the space
before them; those that are not (a number and the word before it, a text's beginning) are kept as they are. Tokenising
what is not known, and which texts are worth looking up, is `tokenizer`.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

MAX_PIECES = 1 << 16  # some 20 MB; then everything is forgotten
MAX_PIECE_CHARS = 128  # longer ones hardly come again
# One piece takes as long as some 20 characters of a text (9 and 0.45 µs on a Neoverse-N1, Qwen's tokenizer).
MAX_NEW = 16
CHARS_PER_NEW = 32
SAMPLE_CHARS = 128
MAX_SEEN = 1 << 14

Ids = tuple[int, ...]
Encode = Callable[[str], list[int]]


class KnownWords:
    """For tokenizers with boundaries only. Thread-safe: single operations on dictionaries."""

    def __init__(self) -> None:
        self._words: dict[str, Ids] = {}  # begin with an ASCII letter and end in no white space: cut on both sides
        self._pieces: dict[str, Ids] = {}
        self._seen: set[str] = set()  # pieces that have come once

    def __len__(self) -> int:
        return len(self._words) + len(self._pieces)

    def encode(self, text: str, encode: Encode, learn: bool = True) -> list[int] | None:
        """The text's ids, with its few new pieces encoded by `encode`; None where there are more of them, of which
        some are then learnt for the next time."""
        if not self.seem_to_hold(text):
            beginning = text[:SAMPLE_CHARS].rpartition(" ")[0]
            if learn and beginning:
                self._encode_new(self._looked_up(beginning)[1], encode, only_seen=True)
            return None
        found, missing = self._looked_up(text)
        too_many = len(missing) > min(MAX_NEW, 1 + len(text) // CHARS_PER_NEW)
        if not too_many or learn:
            for piece, ids in self._encode_new(missing, encode, only_seen=too_many):
                for place in missing[piece]:
                    found[place] = ids
        return None if too_many else list(chain.from_iterable(found))

    def seem_to_hold(self, text: str) -> bool:
        """Whether half of the words at the text's beginning are known; of a short text, always."""
        words = text[:SAMPLE_CHARS].split(" ")[1:-1]
        few = min(len(text), SAMPLE_CHARS) // CHARS_PER_NEW
        return 2 * sum(map(self._words.__contains__, words)) >= max(few, len(words)) or len(text) < CHARS_PER_NEW

    def _looked_up(self, text: str) -> tuple[list[Ids], dict[str, list[int]]]:
        """The ids of the text's pieces, each at the place of its first word, and the places of those not known."""
        words = text.split(" ")
        found: list[Any] = [*map(self._words.get, words), None]  # None at the end is never passed
        found[0] = None  # there is no space before it
        missing: dict[str, list[int]] = {}
        last = 0
        while (place := found.index(None, last)) < len(words):
            first, last = _around(words, place)
            piece = " ".join(words[first:last]) if first == 0 else " ".join(["", *words[first:last]])
            ids = self._pieces.get(piece)
            if ids is None:
                missing.setdefault(piece, []).append(first)
            found[first:last] = [ids or (), *[()] * (last - first - 1)]
        return found[:-1], missing

    def _encode_new(self, pieces: Iterable[str], encode: Encode, only_seen: bool) -> list[tuple[str, Ids]]:
        """Pieces that are not known, at most MAX_NEW; those seen before are kept. With `only_seen` no others are
        encoded: most of what comes once, such as numbers and names, does not come again."""
        out = []
        for piece in pieces:
            is_seen = piece in self._seen
            if is_seen or not only_seen:
                out.append((piece, tuple(encode(piece))))
                if is_seen and len(piece) <= MAX_PIECE_CHARS:
                    self._keep(*out[-1])
                if len(out) == MAX_NEW:
                    break
            if not is_seen:
                self._mark(piece)
        return out

    def _mark(self, piece: str) -> None:
        if len(self._seen) >= MAX_SEEN:
            self._seen.clear()
        self._seen.add(piece)

    def _keep(self, piece: str, ids: Ids) -> None:
        if len(self) >= MAX_PIECES:
            self._words.clear()
            self._pieces.clear()
        word = piece[1:]
        if piece[:1] == " " and " " not in word and _begins(word) and _ends(word):
            self._words[word] = ids
        else:
            self._pieces[piece] = ids


def _around(words: list[str], place: int) -> tuple[int, int]:
    """The piece that a word is in, as its first word and the one after its last."""
    first, last = place, place + 1
    while first > 0 and not _is_cut(words, first):
        first -= 1
    while last < len(words) and not _is_cut(words, last):
        last += 1
    return first, last


def _is_cut(words: list[str], place: int) -> bool:
    """Whether the text can be cut before the space before this word: the rule of `text_bounds.BOUNDARY`."""
    return _begins(words[place]) and _ends(words[place - 1])


def _begins(word: str) -> bool:
    return word[:1].isascii() and word[:1].isalpha()


def _ends(word: str) -> bool:
    return word != "" and not word[-1].isspace()
