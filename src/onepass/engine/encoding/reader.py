"""`IdReader`: what a model's tokenizer, vocabulary and position limit make of the ids and texts of a request."""

from dataclasses import dataclass
from typing import Any

from onepass.engine.encoding.ids import Ids, ids_of
from onepass.errors import RequestError
from onepass.loading.tokenizer import TextTokenizer


@dataclass(frozen=True)
class IdReader:
    """`param` and `code` of its methods are for the error."""

    tokenizer: TextTokenizer | None
    vocab_size: int
    max_position: int

    def ids(self, value: Any, param: str, code: str) -> Ids:
        return ids_of(value, self.vocab_size, param, code)

    def tokenizer_for(self, param: str) -> TextTokenizer:
        if self.tokenizer is None:
            raise RequestError("no_tokenizer", f"this model has no tokenizer: {param} must be token ids", param)
        return self.tokenizer
