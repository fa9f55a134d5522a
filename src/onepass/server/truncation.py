"""Documents cut to a number of tokens, only where the caller asked for it: never the query, never the template's words.

The cut is made in the document's own text, at a boundary of its tokens; what was cut is told to the caller. Of a long
document only the part is tokenised that can matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from onepass.api import ChatOptions
from onepass.engine.encoding.chat import ChatContext, check_messages_size
from onepass.engine.encoding.text_limits import naming
from onepass.engine.ranking import AskedMethod, chosen_method
from onepass.errors import RequestError, TooLong
from onepass.loading.chat.prompt import split_prompt
from onepass.loading.rerankers.templates import FilledTemplate
from onepass.loading.tokenizer import PIECE_CHARS, TextTokenizer
from onepass.server.engines.service import Served

Side = Literal["right", "left"]
MIN_PART_CHARS = 4096
GUESSED_CHARS = 8  # per token: more than a usual text has, so that one part is mostly enough


@dataclass(frozen=True)
class Cut:
    """To how many tokens: of a document, of a whole prompt (None: the model's limit, if `to_fit`), or both."""

    document_tokens: int | None = None
    prompt_tokens: int | None = None
    to_fit: bool = False
    side: Side = "right"  # which end is cut off


FIT_THE_MODEL = Cut(to_fit=True)


@dataclass(frozen=True)
class Question:
    """What surrounds a document: the words that are never cut. A `conversation` takes the place of the query."""

    query: str | None
    instruction: str | None
    method: AskedMethod
    conversation: ChatContext | None = None

    def words(self, served: Served, tokenizer: TextTokenizer) -> FilledTemplate:
        if self.conversation is not None:
            return _conversation_words(self.conversation, served, tokenizer)
        assert self.query is not None
        template = served.ranker.template(chosen_method(served.ranker, self.method))
        return template.fill(self.query, self.instruction)


def _conversation_words(conversation: ChatContext, served: Served, tokenizer: TextTokenizer) -> FilledTemplate:
    with naming("a prompt of these messages", "messages"):
        check_messages_size(tokenizer, conversation.messages, served.max_position)
    options = conversation.chat or ChatOptions()
    split = split_prompt(served.chat, conversation.messages, options, complete=served.class_head is not None)
    return FilledTemplate(split.before, "", split.after, "", split.strips_left and split.strips_right)


def cut_documents(
    documents: Sequence[str], cut: Cut, question: Question, served: Served
) -> tuple[list[str], list[bool]]:
    """The documents as they are to be scored, and which of them were cut."""
    tokenizer = served.tokenizer
    if tokenizer is None:
        raise RequestError("no_tokenizer", f"{served.model} has no tokenizer: it takes token ids only", "documents")
    words = question.words(served, tokenizer)
    out = list(documents)
    if cut.document_tokens is not None:
        out = [cut_text(tokenizer, text, cut.document_tokens, cut.side) for text in out]
    if cut.to_fit:
        limit = min(cut.prompt_tokens or served.max_position, served.max_position)
        room = limit - _fixed_tokens(tokenizer, words, served.max_position)
        out = [sufficient_part(tokenizer, text, max(0, room), cut.side) for text in out]
        whole = tokenizer.encode_items([words.item(text) for text in out])
        out = [
            text if len(ids) <= room else _fitted(tokenizer, words, text, room, cut.side)
            for text, ids in zip(out, whole, strict=True)
        ]
    return out, [short != text for short, text in zip(out, documents, strict=True)]


def cut_text(tokenizer: TextTokenizer, text: str, limit: int, side: Side = "right") -> str:
    """The longest beginning (or end) of `text`, cut between its tokens, that is `limit` tokens or fewer."""
    if limit <= 0:
        return ""
    text = sufficient_part(tokenizer, text, limit, side)
    spans = tokenizer.spans(text)
    keep = limit
    while len(spans) > limit:  # a shorter text may be split otherwise, a character may be several tokens: look again
        if side == "right":
            text = text[: spans[keep - 1][1]] if keep else ""
        else:
            text = text[spans[-keep][0] :] if keep else ""
        spans = tokenizer.spans(text)
        keep = min(keep, len(spans)) - 1
    return text


def sufficient_part(tokenizer: TextTokenizer, text: str, tokens: int, side: Side = "right") -> str:
    """A beginning (or, where the left is cut off, an end) of a long text with more than so many tokens, which are those
    of the whole text: what is beyond it makes no difference to a cut. A short text is returned whole.

    Where a text has no boundary far beyond what its tokens could cover, it is cut there all the same: the result then
    has as many tokens as it may have, but its last ones may differ from those of the whole text."""
    size = max(MIN_PART_CHARS, GUESSED_CHARS * tokens)
    most = tokenizer.bounds.max_bytes(tokens + 1) if len(text) > size else 0
    while len(text) > size:
        part = _part(tokenizer, text, size, most + PIECE_CHARS, side)
        if size >= most or len(tokenizer.encode_item(part)) > tokens:
            return part
        size *= 4
    return text


def _part(tokenizer: TextTokenizer, text: str, size: int, most: int, side: Side) -> str:
    """`size` characters or a few more, to the next boundary; at most `most` without one."""
    if side == "right":
        return text[: tokenizer.bounds.boundary_from(text, size, max(size, most)) or max(size, most)]
    end = len(text) - size
    begin = max(0, len(text) - max(size, most))
    return text[tokenizer.bounds.boundary_up_to(text, end, begin) or begin :]


def _fitted(tokenizer: TextTokenizer, words: FilledTemplate, text: str, room: int, side: Side) -> str:
    """Cut until the item as a whole has room: joined to the template's words a document may be a token longer."""
    while (over := len(tokenizer.encode_item(words.item(text))) - room) > 0:
        if not text:
            raise TooLong(f"the query and the template leave {max(0, room)} tokens for a document", "query")
        text = cut_text(tokenizer, text, len(tokenizer.spans(text)) - over, side)
    return text


def _fixed_tokens(tokenizer: TextTokenizer, words: FilledTemplate, limit: int) -> int:
    """The context, and for a likelihood the query that follows; the words around the document count with it."""
    with naming("the query, with the template,", "query"):
        return len(tokenizer.encode_query(words.context, limit)) + max(
            0, len(tokenizer.encode_item(words.continuation, limit)) - 1
        )
