"""Text to token ids and back: a `tokenizers` tokenizer with the joining rule of onepass.

Query and items are encoded separately. What the tokenizer puts before a text (BOS) goes on the query only; what it
would put after (EOS) goes nowhere, since scoring asks for the next token. Long texts are tokenised in pieces, so that
nothing waits long and a text that cannot fit is found early; where they may be cut is `text_bounds`. GGUF vocabularies
are `tokenizer`s.
"""

import copy
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Self

from tokenizers import Encoding, Tokenizer

from onepass.errors import BadCheckpoint
from onepass.loading.known_words import KnownWords
from onepass.loading.text_bounds import TextBounds, has_boundaries

# `encode` holds the interpreter's lock, `encode_batch` does not but hands its texts to a pool of threads, which costs
# about what 300 characters do. Ids become a list under the lock again, so that a call should give few thousands.
LOCKED_CHARS = 256
PIECE_CHARS = 1 << 15
# Texts of so many characters together are looked up word by word, under the lock, in a tenth of the time; more are
# shared out to threads.
LOOKED_UP_CHARS = 1 << 13
KNOWN_TOKENS = 4096  # whose texts are kept: labels come again with every request


class TextTooLong(Exception):
    """A text has more tokens than it may have. The text of the exception follows "the query has"."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number  # of the text, among those encoded together


class UnknownText(Exception):
    """A text would have to be tokenised, and was to be looked up only."""


class TextTokenizer:
    """`checked` gives the same tokenizer with a function that is called between pieces of work, and may raise; `quick`
    one that raises UnknownText where a text is not short, or not of known words but for a few."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._check: Callable[[], None] | None = None
        self._has_boundaries = has_boundaries(tokenizer)  # `bounds` walk through the vocabulary, too
        self._words = KnownWords()
        self._is_quick = False
        self.added_tokens = added_tokens(tokenizer)
        self._token = lru_cache(maxsize=KNOWN_TOKENS)(self._decoded_token)

    def checked(self, check: Callable[[], None]) -> Self:
        same = copy.copy(self)
        same._check = check
        return same

    def quick(self) -> Self:
        same = copy.copy(self)
        same._is_quick = True
        return same

    def seems_known(self, text: str) -> bool:
        """Whether `quick` is worth trying: by the text's first words."""
        return self._has_boundaries and self._words.seem_to_hold(text)

    @cached_property
    def bounds(self) -> TextBounds:
        return TextBounds.of(self._tokenizer)

    @classmethod
    def from_file(cls, path: Path) -> "TextTokenizer":
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises bare Exception for any unreadable file
            raise BadCheckpoint(f"{path.name} must be a `tokenizers` file; {error}") from error

    @classmethod
    def from_json(cls, text: str) -> "TextTokenizer":
        """From `to_json`. Also computes the bounds now: a server must not stop for them at its first long text."""
        tokenizer = cls(Tokenizer.from_str(text))
        tokenizer.bounds  # noqa: B018
        return tokenizer

    def to_json(self) -> str:
        """All of it, so that another process need not read the model's files."""
        return str(self._tokenizer.to_str())

    @property
    def kind(self) -> str:
        return type(self._tokenizer.model).__name__

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode_query(self, text: str, limit: int | None = None) -> list[int]:
        """With what the tokenizer puts before a text. Raises TextTooLong where it is sure of more than `limit`."""
        if len(text) > PIECE_CHARS:
            return self._before + self._encode_long(text, limit, 0)
        if text and (known := self._looked_up([text])[0]) is not None:
            return self._before + known
        encoding = self._encode_short([text], add_special_tokens=True)[0]
        ids, added = list(encoding.ids), list(encoding.special_tokens_mask)
        while added and added[-1] and not all(added):
            ids.pop()
            added.pop()
        return ids

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Two short texts as the tokenizer itself joins them, with all that it adds."""
        return list(self._tokenizer.encode(first, second, add_special_tokens=True).ids)

    def encode_item(self, text: str, limit: int | None = None) -> list[int]:
        return TextTokenizer.encode_items(self, [text], limit)[0]

    def encode_items(self, texts: Sequence[str], limit: int | None = None) -> list[list[int]]:
        """Raises TextTooLong for the first text that is sure to have more than `limit` tokens; a text of a few pages
        is tokenised whole, and may have more."""
        out: list[list[int]] = []
        batch: list[str] = []
        size = 0
        for text in texts:
            if size + len(text) > PIECE_CHARS:
                out += self._encode_batch(batch)
                batch, size = [], 0
            if len(text) > PIECE_CHARS:
                out.append(self._encode_long(text, limit, len(out)))
            else:
                batch.append(text)
                size += len(text)
        return out + self._encode_batch(batch)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where each token of an item lies in its text, in characters."""
        if len(text) <= LOCKED_CHARS:
            return list(self._tokenizer.encode(text, add_special_tokens=False).offsets)
        if self._check is not None:
            self._check()
        return list(self._tokenizer.encode_batch([text], add_special_tokens=False)[0].offsets)

    @property
    def _before(self) -> list[int]:
        """What the tokenizer puts before a text (BOS)."""
        return self.added_tokens[0]

    def _encode_batch(self, texts: list[str]) -> list[list[int]]:
        out = self._looked_up(texts)
        new = [text for text, ids in zip(texts, out, strict=True) if ids is None]
        encodings = iter(self._encode_short(new, add_special_tokens=False))
        return [list(next(encodings).ids) if ids is None else ids for ids in out]

    def _looked_up(self, texts: list[str]) -> list[list[int] | None]:
        """The ids of texts whose words are known but for a few; None for those to be tokenised."""
        out: list[list[int] | None] = [None] * len(texts)
        if sum(map(len, texts)) <= LOOKED_UP_CHARS and self._has_boundaries:
            out = [self._words.encode(text, self._encode_piece, learn=not self._is_quick) for text in texts]
        if self._is_quick and None in out:
            raise UnknownText
        return out

    def _encode_piece(self, piece: str) -> list[int]:
        return list(self._tokenizer.encode(piece, add_special_tokens=False).ids)

    def _encode_short(self, texts: list[str], add_special_tokens: bool) -> list[Encoding]:
        if not texts:
            return []
        if len(texts) == 1 and len(texts[0]) <= LOCKED_CHARS:
            return [self._tokenizer.encode(texts[0], add_special_tokens=add_special_tokens)]
        if self._check is not None:
            self._check()
        return self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)

    def _encode_long(self, text: str, limit: int | None, number: int) -> list[int]:
        """Piece by piece, cut where that changes no token, until there are more than `limit`."""
        bounds = self.bounds
        if limit is not None and (size := bounds.exceeds(text, limit)) is not None:
            tokens = f"the limit is {limit:,} tokens, which have at most {bounds.max_bytes(limit):,} bytes"
            raise TextTooLong(number, f"{'' if text.isascii() else 'at least '}{size:,} bytes; {tokens}")
        ids: list[int] = []
        start = 0
        while start < len(text):
            end = bounds.boundary_from(text, start + PIECE_CHARS) or len(text)
            ids += self._encode_batch([text[start:end]])[0]
            start = end
            if limit is not None and len(ids) > limit and start < len(text):
                raise TextTooLong(number, f"more than {len(ids):,} tokens; the limit is {limit:,}")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def token(self, token_id: int) -> str:
        """A token as a person would write it: decoded text, or the vocabulary's own form for partial characters."""
        return self._token(token_id)

    def _decoded_token(self, token_id: int) -> str:
        text = self.decode([token_id])
        return text if text and "�" not in text else (self._tokenizer.id_to_token(token_id) or f"<{token_id}>")


def added_tokens(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """What a tokenizer puts before a text (BOS) and after it (EOS)."""
    encoding = tokenizer.encode("a", add_special_tokens=True)
    ids, added = list(encoding.ids), list(encoding.special_tokens_mask)
    if 0 not in added:
        return [], []
    return ids[: added.index(0)], ids[len(added) - added[::-1].index(0) :]
