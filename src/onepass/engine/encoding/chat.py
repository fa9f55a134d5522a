"""A request with `messages` as token ids: the beginning that its prompts share, and each item with what surrounds it.

Rendering and cutting the text is `loading.chat.prompt`; everything else about a request is checked in `encode`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onepass.api import ChatOptions, ScoreRequest
from onepass.engine.encoding.ids import Ids, is_list
from onepass.engine.encoding.text_limits import text_size
from onepass.errors import RequestError
from onepass.loading.chat.prompt import SplitPrompt, exact_cut, split_prompt
from onepass.loading.chat.template import ChatTemplates
from onepass.loading.tokenizer import TextTokenizer, TextTooLong

UNCHECKED_CHARS = 1 << 15  # messages up to here are rendered without asking for the tokenizer's bounds


@dataclass(frozen=True)
class ChatContext:
    """Messages in place of a query, of which the part that all items share is kept."""

    messages: Any
    chat: ChatOptions | None = None


@dataclass(frozen=True)
class ChatTokenIds:
    shared: Ids
    items: tuple[Ids, ...]


def kept_query(query: Any, messages: Any, chat: ChatOptions | None) -> Any:
    """What a context is made of: the query, or messages in its place."""
    if messages is None:
        return query
    if query is not None:
        raise RequestError("conflicting_query", "give messages or query, not both", "query")
    return ChatContext(messages, chat)


def chat_token_ids(
    tokenizer: TextTokenizer,
    templates: ChatTemplates,
    request: ScoreRequest,
    *,
    complete: bool = False,
    limit: int | None = None,
) -> ChatTokenIds:
    """The ids of every item's whole prompt, as the tokenizer gives them for its text, split after what all share. A
    text that is sure to have more than `limit` tokens is refused before it is tokenised (TextTooLong)."""
    _check_conflicts(request)
    if limit is not None:
        check_messages_size(tokenizer, request.messages, limit)
    split = split_prompt(templates, request.messages, request.chat or ChatOptions(), complete=complete)
    items = [split.item(text) for text in _item_texts(request.items)]
    cut = exact_cut(tokenizer, split.before, split.after, items)
    if cut is None:
        return _by_common_prefix(tokenizer, split, items, limit)
    lead = split.before[cut:]
    shared = tuple(tokenizer.encode_item(split.before[:cut], limit))
    texts = [lead + text + split.after for text in items]
    return ChatTokenIds(shared, tuple(map(tuple, tokenizer.encode_items(texts, limit))))


def check_messages_size(tokenizer: TextTokenizer, messages: Any, limit: int) -> None:
    """Before anything is rendered: templates are slow, and hold the interpreter's lock."""
    size = text_size(messages)
    if size > UNCHECKED_CHARS and size > tokenizer.bounds.max_bytes(limit):
        most = tokenizer.bounds.max_bytes(limit)
        raise TextTooLong(
            0, f"at least {size:,} bytes; the limit is {limit:,} tokens, which have at most {most:,} bytes"
        )


def _by_common_prefix(
    tokenizer: TextTokenizer, split: SplitPrompt, items: list[str], limit: int | None
) -> ChatTokenIds:
    """For tokenizers that no cut suits: whole prompts, of which the beginning is shared."""
    prompts = tokenizer.encode_items([split.before + text + split.after for text in items], limit)
    probe = tokenizer.encode_item(split.before, limit)
    shared = min([len(probe), *(_common(probe, prompt) for prompt in prompts)])
    if not shared:
        raise RequestError("empty_query", "the chat prompts of these items have no token in common", "messages")
    return ChatTokenIds(tuple(probe[:shared]), tuple(tuple(prompt[shared:]) for prompt in prompts))


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many ids both begin with."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))


def _item_texts(items: Any) -> list[str]:
    texts = [items] if isinstance(items, str) else items
    if not is_list(texts) or not all(isinstance(text, str) for text in texts):
        raise RequestError("invalid_items_type", "with messages, items must be strings", "items")
    return list(texts)


def _check_conflicts(request: ScoreRequest) -> None:
    for name in ("query", "context", "delimiter_token_id"):
        if getattr(request, name) is not None:
            raise RequestError("conflicting_query", f"give messages or {name}, not both", name)
    if request.item_first:
        raise RequestError("invalid_item_first", "item_first and messages exclude each other", "item_first")
