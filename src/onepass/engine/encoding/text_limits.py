"""Limits of texts in bytes, checked before they are tokenised, as errors that name the text.

The limits themselves follow from the tokenizer's vocabulary: `loading.text_bounds`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onepass.errors import RequestError, TooLong, shown
from onepass.loading.text_bounds import utf8_size
from onepass.loading.tokenizer import TextTokenizer, TextTooLong

UNCHECKED_LABEL_CHARS = 64  # a label up to here is simply tokenised


@contextmanager
def naming(name: str, param: str) -> Iterator[None]:
    """Gives a text that the tokenizer found too long its name; "{}" in it stands for the text's number. A lone
    surrogate, which no UTF-8 has, is a TypeError of the tokenizer's."""
    try:
        yield
    except TextTooLong as error:
        raise TooLong(f"{name.format(error.number)} has {error}", param) from None
    except TypeError as error:
        if "TextInputSequence" not in str(error):
            raise
        raise RequestError("invalid_text", f"{param} must be Unicode without lone surrogates", param) from None


def check_label_size(tokenizer: TextTokenizer, label: str) -> None:
    """Raises for a label that is longer than every token."""
    if len(label) <= UNCHECKED_LABEL_CHARS or utf8_size(label) <= tokenizer.bounds.max_token_bytes:
        return
    limit = tokenizer.bounds.max_token_bytes
    size = f"it has {len(label):,} characters, and no token has more than {limit:,}"
    message = f"label {shown(label)} must be one token; {size}"
    raise RequestError("label_not_single_token", message, "labels")


def check_ids_length(ids: Any, limit: int, name: str, param: str) -> None:
    """Before the ids are looked at one by one."""
    if isinstance(ids, list | tuple) and len(ids) > limit:
        raise TooLong(f"{name} has {len(ids):,} tokens; the limit is {limit:,}", param)


def text_size(value: object) -> int:
    """Characters in a text, or in all texts of a list or object; a list of ids counts as its length."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(text_size, value.values()))
    if not isinstance(value, list | tuple) or not value:
        return 0
    return len(value) if isinstance(value[0], int) else sum(map(text_size, value))
