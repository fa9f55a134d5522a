"""Requests encoded beside the event loop: on a thread, or at once where that takes less time than waking one.

Encoding itself is `engine.encoding.encode`; the threads are `tokenizer_threads`.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from onepass.api import ScoreRequest, Text
from onepass.engine.encoding.branches import BranchedRequest
from onepass.engine.encoding.chat import ChatContext
from onepass.engine.encoding.encode import Encoded, Encoder
from onepass.engine.encoding.ids import Ids
from onepass.loading.tokenizer import LOOKED_UP_CHARS, TextTokenizer, UnknownText
from onepass.server.engines.request_limits import num_tokens
from onepass.server.tokenizer_threads import FEW_TEXTS, TokenizerThreads, request_size, text_size

FEW_IDS = 8192  # a request of token ids up to here is checked in less time than a thread takes to be woken


@dataclass(frozen=True)
class ThreadedEncoder:
    """`check_size` raises where a request of so many tokens and labels is too large to be admitted."""

    encoder: Encoder
    threads: TokenizerThreads
    check_size: Callable[[int, int], None]

    @property
    def tokenizer(self) -> TextTokenizer | None:
        return self.encoder.tokenizer

    async def encode(self, request: ScoreRequest, context: Ids | None, deadline: float | None) -> Encoded:
        def encode(check: Callable[[], None], tokenizer: TextTokenizer | None = self.tokenizer) -> Encoded:
            encoded = self._checked(check, tokenizer).encode(request, context)
            self.check_size(num_tokens(encoded), sum(map(len, encoded.labels)))
            return encoded

        if has_few_ids(request):
            return encode(_unchecked)
        if self.tokenizer is not None and has_short_texts(request):
            with suppress(UnknownText):
                return encode(_unchecked, self.tokenizer.quick())
        return await self.threads.run(encode, request_size(request), deadline)

    async def encode_context(self, query: Text | ChatContext, deadline: float | None) -> Ids:
        def encode(check: Callable[[], None]) -> Ids:
            return self._checked(check, self.tokenizer).encode_context(query)

        size = text_size(query.messages if isinstance(query, ChatContext) else query)
        return await self.threads.run(encode, size, deadline)

    def _checked(self, check: Callable[[], None], tokenizer: TextTokenizer | None) -> Encoder:
        return replace(self.encoder, tokenizer=tokenizer and tokenizer.checked(check))


def has_few_ids(request: ScoreRequest) -> bool:
    """Whether nothing of it has to be tokenised, and little has to be looked at."""
    texts = (request.messages, request.labels, request.continuations)
    if any(text is not None for text in texts) or isinstance(request, BranchedRequest):
        return False
    return sum(map(_num_ids, (request.query, request.items, request.label_token_ids))) <= FEW_IDS


def has_short_texts(request: ScoreRequest) -> bool:
    """Whether looking its texts up, word by word, takes less time than a thread takes to be woken."""
    if request.messages is not None or request.continuations is not None or isinstance(request, BranchedRequest):
        return False
    lists = [texts for texts in (request.items, request.labels) if isinstance(texts, list | tuple)]
    return (
        sum(map(len, lists)) <= FEW_TEXTS
        and _num_ids(request.label_token_ids) <= FEW_IDS
        and request_size(request) <= LOOKED_UP_CHARS
    )


def _num_ids(value: Any) -> int:
    """Ids in a list or in lists of them, where each list counts for one more; text counts for too many."""
    if value is None:
        return 0
    if not isinstance(value, list | tuple):
        return FEW_IDS + 1
    if not value or isinstance(value[0], int) or len(value) > FEW_IDS:
        return len(value)
    return sum(len(entry) + 1 if isinstance(entry, list | tuple) else FEW_IDS + 1 for entry in value)


def _unchecked() -> None:
    """There is nothing to interrupt."""
