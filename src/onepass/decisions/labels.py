"""Labels of options that are single tokens where the answer stands: A to Z first, then AA, AB, … as the model has them.

A label is one token in its place when the prompt's end with the label after it gives the tokens of the prompt's end and
one more. A label that is not is passed over, so no option is hidden behind half a label.
"""

import string
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, product

from onepass.decisions.prompt import YES_NO
from onepass.errors import RequestError
from onepass.loading.tokenizer import TextTokenizer

UPPER, LOWER, DIGITS = string.ascii_uppercase, string.ascii_lowercase, string.digits
LAST_LINE = 80  # characters before the answer that decide how it is split into tokens


@dataclass(frozen=True)
class AnswerLabel:
    """`text` is shown before the option; `token` is read as the answer."""

    text: str
    token: int


class AnswerLabels:
    """The labels of one tokenizer after one tail, found as they are needed and kept."""

    def __init__(self, tokenizer: TextTokenizer, tail: str) -> None:
        self._tokenizer = tokenizer
        self._end = tail[-LAST_LINE:]
        self._end_ids = tokenizer.encode_item(self._end)
        # After white space a label follows at once; after a word or a sign there is a space before it.
        self._spaces = ("", " ") if not self._end or self._end[-1].isspace() else (" ", "")
        self._found: list[AnswerLabel] = []
        self._space = self._first_space()
        self._untried = self._candidates()
        self._yes_no = self._words()

    def first(self, count: int) -> list[AnswerLabel]:
        taken = {label.token for label in self._found}
        while len(self._found) < count and (text := next(self._untried, None)) is not None:
            token = self._token(self._space + text)
            if token is not None and token not in taken:
                taken.add(token)
                self._found.append(AnswerLabel(text, token))
        if len(self._found) < count:
            raise RequestError(
                "too_many_options",
                f"this model's tokenizer has {len(self._found)} labels of one token; a question has {count} options",
                "questions",
            )
        return self._found[:count]

    def yes_no(self) -> list[AnswerLabel]:
        """The words yes and no, or two letters where one of the words is several tokens."""
        return self._yes_no or self.first(2)

    def _words(self) -> list[AnswerLabel]:
        for space in self._spaces:
            tokens = [token for word in YES_NO if (token := self._token(space + word)) is not None]
            if len(set(tokens)) == len(YES_NO):
                return [AnswerLabel(word, token) for word, token in zip(YES_NO, tokens, strict=True)]
        return []

    def _first_space(self) -> str:
        return next((space for space in self._spaces if self._token(space + "A") is not None), self._spaces[0])

    def _token(self, text: str) -> int | None:
        ids = self._tokenizer.encode_item(self._end + text)
        one_more = len(ids) == len(self._end_ids) + 1 and ids[:-1] == self._end_ids
        return ids[-1] if one_more else None

    @staticmethod
    def _candidates() -> Iterator[str]:
        pairs = (UPPER, UPPER), (UPPER, DIGITS), (UPPER, LOWER), (LOWER, LOWER), (DIGITS, DIGITS)
        return chain(UPPER, *(map("".join, product(*pair)) for pair in pairs), LOWER, DIGITS)
