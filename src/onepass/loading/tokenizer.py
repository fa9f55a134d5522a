"""Text to token ids and back: a `tokenizers` tokenizer with the joining rule of onepass.

Query and items are encoded separately. What the tokenizer puts before a text (BOS) goes on the query only; what it
would put after (EOS) goes nowhere, since scoring asks for the next token. GGUF vocabularies are `gguf_tokenizer`s.
"""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from onepass.errors import BadCheckpoint


class TextTokenizer:
    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer

    @classmethod
    def from_file(cls, path: Path) -> "TextTokenizer":
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises bare Exception for any unreadable file
            raise BadCheckpoint(f"{path.name} must be a `tokenizers` file; {error}") from error

    @classmethod
    def from_json(cls, text: str) -> "TextTokenizer":
        return cls(Tokenizer.from_str(text))

    def to_json(self) -> str:
        """All of it, so that another process need not read the model's files."""
        return str(self._tokenizer.to_str())

    @property
    def kind(self) -> str:
        return type(self._tokenizer.model).__name__

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode_query(self, text: str) -> list[int]:
        encoding = self._tokenizer.encode(text, add_special_tokens=True)
        ids, added = list(encoding.ids), list(encoding.special_tokens_mask)
        while added and added[-1] and not all(added):
            ids.pop()
            added.pop()
        return ids

    def encode_item(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_items(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(e.ids) for e in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where each token of an item lies in its text, in characters."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).offsets)

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def token(self, token_id: int) -> str:
        """A token as a person would write it: decoded text, or the vocabulary's own form for partial characters."""
        text = self.decode([token_id])
        return text if text and "�" not in text else (self._tokenizer.id_to_token(token_id) or f"<{token_id}>")
