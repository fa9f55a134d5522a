"""A tokenizer that remembers the items it has encoded: a catalogue's items come again and again.

Within a budget of bytes, least recently used out first. Queries are not kept: their contexts are, by the engine.
"""

import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from onepass.loading.tokenizer import TextTokenizer, TextTooLong

ENTRY_BYTES = 120  # the dictionary's own share of an entry, measured with CPython 3.12


class TokenCache(TextTokenizer):
    """Thread-safe. `hits`, `misses` and `bytes` are for /metrics."""

    def __init__(self, tokenizer: TextTokenizer, budget: int) -> None:
        super().__init__(tokenizer._tokenizer)
        self.bounds = tokenizer.bounds
        self._store = _Store(budget)  # shared with what `checked` gives

    @property
    def hits(self) -> int:
        return self._store.hits

    @property
    def misses(self) -> int:
        return self._store.misses

    @property
    def bytes(self) -> int:
        return self._store.bytes

    def __len__(self) -> int:
        return len(self._store)

    def encode_items(self, texts: Sequence[str], limit: int | None = None) -> list[list[int]]:
        out = self._store.find(texts)
        missing = list({text: None for text, ids in zip(texts, out, strict=True) if ids is None})
        if not missing:
            return [ids for ids in out if ids is not None]
        try:
            encoded = super().encode_items(missing, limit)
        except TextTooLong as error:
            raise TextTooLong(list(texts).index(missing[error.number]), str(error)) from None
        new = dict(zip(missing, encoded, strict=True))
        self._store.keep(new)
        return [list(new[text]) if ids is None else ids for text, ids in zip(texts, out, strict=True)]


class _Store:
    """Texts and their ids, oldest first."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.hits = 0
        self.misses = 0
        self.bytes = 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, array[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, texts: Sequence[str]) -> list[list[int] | None]:
        with self._lock:
            kept = [self._kept.get(text) for text in texts]
            for text, ids in zip(texts, kept, strict=True):
                if ids is not None:
                    self._kept.move_to_end(text)
            found = sum(ids is not None for ids in kept)
            self.hits += found
            self.misses += len(kept) - found
        return [None if ids is None else ids.tolist() for ids in kept]

    def keep(self, new: dict[str, list[int]]) -> None:
        with self._lock:
            for text, ids in new.items():
                entry = array("I", ids)
                if text in self._kept or _cost(text, entry) > self.budget:
                    continue
                self._kept[text] = entry
                self.bytes += _cost(text, entry)
            while self.bytes > self.budget:
                text, entry = self._kept.popitem(last=False)
                self.bytes -= _cost(text, entry)


def _cost(text: str, ids: "array[int]") -> int:
    return sys.getsizeof(text) + sys.getsizeof(ids) + ENTRY_BYTES
