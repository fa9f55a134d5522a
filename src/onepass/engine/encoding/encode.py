"""A `ScoreRequest` into token ids, checked: every mistake of a caller is raised here, and nowhere later.

Query and items are encoded apart and joined as ids, in every mode. What may stand for ids is `ids`; what runs, and how,
is `plan`.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from onepass.api import MODES, ScoreRequest
from onepass.engine.encoding.branches import BranchedRequest
from onepass.engine.encoding.chat import ChatContext, chat_token_ids
from onepass.engine.encoding.classes import class_ids
from onepass.engine.encoding.ids import Ids, ids_of, is_list, joined, plain_ids, whole_number
from onepass.engine.encoding.text_limits import check_ids_length, check_label_size, naming
from onepass.errors import RequestError, TooLong, shown
from onepass.loading.chat.template import ChatTemplates
from onepass.loading.rerankers.readouts import ClassHead
from onepass.loading.tokenizer import TextTokenizer


@dataclass(frozen=True)
class Encoded:
    """`context` is shared by all items (empty with item_first); each item's own tokens continue it."""

    request: ScoreRequest
    context: Ids
    items: tuple[Ids, ...]
    labels: tuple[Ids, ...]  # one set an item
    continuations: tuple[tuple[Ids, ...], ...]  # one set an item; items that share a set share the tuple
    prompt_tokens: int
    # The items' tokens, one after another, where they were seen as an array anyway.
    flat: np.ndarray | None = field(default=None, compare=False)
    branches: tuple[Ids, ...] = ()  # that every item ends in; labels then has a set per item and branch, items outside
    class_head: ClassHead | None = None  # labels are classes of it, not tokens

    @property
    def whole_vocabulary(self) -> bool:
        """Softmax over the labels alone needs no pass over the vocabulary, unless their mass is asked for."""
        return not self.request.apply_softmax or self.request.label_mass or any(self.continuations)


@dataclass(frozen=True)
class Encoder:
    tokenizer: TextTokenizer | None
    vocab_size: int
    max_position: int
    chat: ChatTemplates = field(default_factory=ChatTemplates)
    class_head: ClassHead | None = None

    def encode(self, request: ScoreRequest, context: Ids | None = None) -> Encoded:
        """`context` holds the ids of a kept context when the request names one by handle."""
        encoded = self._encode(request, context)
        return encoded if self.class_head is None else replace(encoded, class_head=self.class_head)

    def _encode(self, request: ScoreRequest, context: Ids | None) -> Encoded:
        _check_options(request)
        if request.messages is not None:
            return self._encode_chat(request)
        if isinstance(request, BranchedRequest):
            return self._encode_branched(request)
        if context is not None and request.query is not None:
            raise RequestError("conflicting_query", "give a query or a kept context, not both", "query")
        query = self._query(request) if context is None else context
        items, flat = self._items(request, text_query=isinstance(request.query, str), free=context is not None)
        delimiter = () if request.delimiter_token_id is None else (self._delimiter(request.delimiter_token_id),)
        labels = self._labels(request, len(items))
        continuations = self._continuations(request, len(items))
        counted = len(query) + len(delimiter) + sum(map(len, items))
        if request.item_first:
            if context is not None:
                raise RequestError("invalid_item_first", "item_first cannot use a kept context", "item_first")
            items, flat = tuple(item + delimiter + query for item in items), None
        shared = () if request.item_first else query + delimiter
        encoded = Encoded(request, shared, items, labels, continuations, counted, flat)
        self._check_lengths(encoded)
        return encoded

    def _encode_branched(self, request: BranchedRequest) -> Encoded:
        query = self._query(request)
        items, flat = self._items(request, text_query=False, free=False)
        branches = tuple(self._ids(ids, f"branches[{i}]", "invalid_branches") for i, ids in enumerate(request.branches))
        if not branches or not all(branches) or not all(items):
            raise RequestError("invalid_branches", "items and branches must have at least one token each", "branches")
        labels = tuple(
            self._label_set(ids, f"branch_label_token_ids[{i}]") for i, ids in enumerate(request.branch_label_token_ids)
        )
        if len(labels) != len(branches):
            raise RequestError(
                "label_count_mismatch", f"{len(branches)} branches need a label set each; got {len(labels)}", "branches"
            )
        counted = len(query) + sum(map(len, items)) + len(items) * sum(map(len, branches))
        encoded = Encoded(request, query, items, labels * len(items), ((),) * len(items), counted, flat, branches)
        self._check_lengths(encoded)
        return encoded

    def _encode_chat(self, request: ScoreRequest) -> Encoded:
        """`messages` in place of the query: rendered by the chat template, with the items where they go."""
        with naming("a prompt of these messages", "messages"):
            prompts = chat_token_ids(
                self._tokenizer("messages"),
                self.chat,
                request,
                complete=self.class_head is not None,
                limit=self.max_position,
            )
        labels = self._labels(request, len(prompts.items))
        continuations = self._continuations(request, len(prompts.items))
        counted = len(prompts.shared) + sum(map(len, prompts.items))
        encoded = Encoded(request, prompts.shared, prompts.items, labels, continuations, counted)
        self._check_lengths(encoded)
        return encoded

    def encode_context(self, query: Any) -> Ids:
        """A query alone, as `prefill` takes it: a text, token ids or a `ChatContext`, of which the beginning is kept
        that requests with the same messages share."""
        if isinstance(query, ChatContext):
            ids = self._encode_chat(self._chat_request(query)).context
        else:
            ids = self._query(ScoreRequest(query=query))
        self._check_query_length(ids)
        return ids

    def _chat_request(self, context: ChatContext) -> ScoreRequest:
        """A request that has the context's messages, an empty item, and any label."""
        labels = None if self.class_head is not None else [0]
        return ScoreRequest(messages=context.messages, chat=context.chat, items=[""], label_token_ids=labels)

    def _query(self, request: ScoreRequest) -> Ids:
        query = request.query
        if query is None:
            raise RequestError("missing_query", "query is required: a string or a list of token ids", "query")
        if isinstance(query, str):
            if not query:
                raise RequestError("empty_query", "query must not be empty; got ''", "query")
            tokenizer = self._tokenizer("query")
            encode = tokenizer.encode_query if request.add_special_tokens else tokenizer.encode_item
            with naming("the query", "query"):
                ids = tuple(encode(query, self.max_position))
        else:
            check_ids_length(query, self.max_position, "the query", "query")
            ids = self._ids(query, "query", "invalid_query_type")
        if not ids:
            raise RequestError("empty_query", "query must have at least one token; got none", "query")
        return ids

    def _items(self, request: ScoreRequest, text_query: bool, free: bool) -> tuple[tuple[Ids, ...], np.ndarray | None]:
        """The items' tokens, and all of them as one array where that costs nothing."""
        items: Any = request.items
        if items is None:
            raise RequestError("missing_items", "items are required: strings or lists of token ids", "items")
        if isinstance(items, str):
            items = [items]
        if not is_list(items):
            raise RequestError("invalid_items_type", f"items must be a list; got {shown(items)}", "items")
        plain = set(map(type, items)) <= {list, tuple}
        if (text_query or not plain) and self._are_texts(items, text_query, free):
            with naming("items[{}]", "items"):
                return tuple(map(tuple, self._tokenizer("items").encode_items(items, self.max_position))), None
        for i, item in enumerate(items):
            check_ids_length(item, self.max_position, f"items[{i}]", "items")
        if plain and (flat := plain_ids(joined(items), self.vocab_size)) is not None:
            return tuple(map(tuple, items)), flat
        return tuple(self._ids(item, f"items[{i}]", "invalid_items_type") for i, item in enumerate(items)), None

    def _are_texts(self, items: Any, text_query: bool, free: bool) -> bool:
        """Whether items are strings: all of them or none, and of the query's kind unless they are `free`."""
        texts = [isinstance(item, str) for item in items]
        wanted = "strings" if text_query else "lists of token ids"
        if any(texts) != all(texts) or texts[:1] == [not text_query]:
            self._check_item_types(items)
        if any(texts) and not all(texts):
            odd = texts.index(not texts[0])
            raise RequestError("mixed_input_types", f"items must be all text or all ids; items[{odd}] differs", "items")
        if texts and not free and texts[0] != text_query:
            raise RequestError(
                "mixed_input_types", f"query and items must be of one kind; items must be {wanted}", "items"
            )
        return bool(texts) and texts[0]

    def _check_item_types(self, items: Any) -> None:
        """Something that is neither text nor ids is told as such, before a mixture of the two is."""
        for i, item in enumerate(items):
            if not isinstance(item, str) and not is_list(item):
                raise RequestError(
                    "invalid_items_type",
                    f"items[{i}] must be a string or a list of token ids; got {shown(item)}",
                    f"items[{i}]",
                )

    def _labels(self, request: ScoreRequest, num_items: int) -> tuple[Ids, ...]:
        if self.class_head is not None:
            return class_ids(self.class_head, request, num_items)
        labels, ids = request.labels, request.label_token_ids
        if labels is not None and ids is not None:
            raise RequestError("conflicting_labels", "give labels or label_token_ids, not both", "labels")
        if labels is None and ids is None:
            if request.continuations is None:
                raise RequestError(
                    "missing_labels", "labels or label_token_ids (or continuations) are required", "labels"
                )
            return ((),) * num_items
        if labels is not None:
            if isinstance(labels, str) or not isinstance(labels, Sequence):
                raise RequestError(
                    "invalid_labels_type", f"labels must be a list of strings; got {shown(labels)}", "labels"
                )
            token_ids = [self._label(x) for x in labels]
            _check_distinct(labels, token_ids)
            return (self._label_set(token_ids, "labels"),) * num_items
        if ids is None or not is_list(ids):
            raise RequestError(
                "invalid_token_id_type", f"label_token_ids must be a list; got {shown(ids)}", "label_token_ids"
            )
        if not len(ids):
            raise RequestError("empty_label_token_ids", "label_token_ids must not be empty", "label_token_ids")
        nested = [is_list(x) for x in ids]
        if not any(nested):
            return (self._label_set(ids, "label_token_ids"),) * num_items
        if not all(nested) or len(ids) != num_items:
            raise RequestError(
                "label_count_mismatch",
                f"label_token_ids must be one list, or one list for each of {num_items} items; got {len(ids)} entries",
                "label_token_ids",
            )
        return tuple(self._label_set(row, f"label_token_ids[{i}]") for i, row in enumerate(ids))

    def _label(self, label: Any) -> int:
        if not isinstance(label, str):
            raise RequestError("invalid_labels_type", f"labels must be strings; got {shown(label)}", "labels")
        tokenizer = self._tokenizer("labels")
        check_label_size(tokenizer, label)
        ids = tokenizer.encode_item(label)
        if len(ids) != 1:
            tokens = ", ".join(f"{tokenizer.token(i)!r} ({i})" for i in ids) or "nothing"
            raise RequestError(
                "label_not_single_token",
                f"label {label!r} must be one token; it becomes {len(ids)}: {tokens}; "
                "texts of several tokens are scored as continuations (--continuations in the command)",
                "labels",
            )
        return ids[0]

    def _label_set(self, ids: Any, param: str) -> Ids:
        if not len(ids):
            raise RequestError("empty_label_token_ids", f"{param} must not be empty", param)
        for token in ids:
            value = whole_number(token, param, "invalid_token_id_type")
            if value < 0:
                raise RequestError("negative_token_id", f"{param} must not be negative; got {value}", param)
            if value >= (len(self.class_head.labels) if self.class_head else self.vocab_size):
                raise RequestError(
                    "token_id_exceeds_vocab",
                    f"{param} must be below the vocabulary's {self.vocab_size}; got {value}",
                    param,
                )
        label_ids = tuple(int(token) for token in ids)
        twice = next((token for token, count in Counter(label_ids).items() if count > 1), None)
        if twice is not None:
            raise RequestError("duplicate_label", f"{param} must be distinct; token {twice} is given twice", param)
        return label_ids

    def _continuations(self, request: ScoreRequest, num_items: int) -> tuple[tuple[Ids, ...], ...]:
        texts = request.continuations
        if texts is None:
            return ((),) * num_items
        if isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
            raise RequestError(
                "invalid_continuations", f"continuations must be a non-empty list; got {shown(texts)}", "continuations"
            )
        per_item = [_is_set(entry) for entry in texts]
        if not any(per_item):
            return (self._continuation_set(texts, "continuations"),) * num_items
        odd = next(
            (i for i, entry in enumerate(texts) if not per_item[i] and not (is_list(entry) and not len(entry))), None
        )
        if odd is not None:
            raise RequestError(
                "invalid_continuations",
                "continuations must be one list of texts for all items, or one list of texts per item; "
                f"continuations[{per_item.index(True)}] is a list of texts and continuations[{odd}] is not",
                "continuations",
            )
        if len(texts) != num_items:
            raise RequestError(
                "continuation_count_mismatch",
                f"continuations must have one list of texts per item; items: {num_items}, lists: {len(texts)}",
                "continuations",
            )
        return tuple(self._continuation_set(row, f"continuations[{i}]") for i, row in enumerate(texts))

    def _continuation_set(self, texts: Any, name: str) -> tuple[Ids, ...]:
        if not len(texts):
            raise RequestError(
                "invalid_continuations", f"{name} must hold at least one text; got none", "continuations"
            )
        out = []
        for i, text in enumerate(texts):
            param = f"{name}[{i}]"
            if isinstance(text, str):
                with naming(param, "continuations"):
                    ids = tuple(self._tokenizer(param).encode_item(text, self.max_position))
            else:
                check_ids_length(text, self.max_position, param, "continuations")
                ids = self._ids(text, param, "invalid_continuations")
            if not ids:
                raise RequestError(
                    "invalid_continuations", f"{param} must have at least one token; got none", "continuations"
                )
            out.append(ids)
        return tuple(out)

    def _delimiter(self, token: Any) -> int:
        return self._ids([token], "delimiter_token_id", "invalid_token_id_type")[0]

    def _ids(self, value: Any, param: str, code: str) -> Ids:
        return ids_of(value, self.vocab_size, param, code)

    def _tokenizer(self, param: str) -> TextTokenizer:
        if self.tokenizer is None:
            raise RequestError("no_tokenizer", f"this model has no tokenizer: {param} must be token ids", param)
        return self.tokenizer

    def _check_query_length(self, ids: Ids) -> None:
        if len(ids) > self.max_position:
            raise TooLong(f"the query has {len(ids):,} tokens; the limit is {self.max_position:,}", "query")

    def _check_lengths(self, encoded: Encoded) -> None:
        tails = [max(map(len, texts), default=1) - 1 for texts in set(encoded.continuations)]
        branch = max(map(len, encoded.branches), default=0)
        self._check_query_length(encoded.context)
        longest = max(map(len, encoded.items), default=0)
        if len(encoded.context) + longest + max(tails, default=0) + branch <= self.max_position:
            return
        for i, item in enumerate(encoded.items):
            tail = max(map(len, encoded.continuations[i]), default=1) - 1 + branch
            total = len(encoded.context) + len(item) + tail
            if total > self.max_position:
                raise TooLong(
                    f"query and items[{i}] together have {total:,} tokens "
                    f"({len(encoded.context):,} shared + {len(item) + tail:,}); the limit is {self.max_position:,}",
                    "items",
                )


def _check_distinct(labels: Sequence[str], token_ids: Sequence[int]) -> None:
    first: dict[int, str] = {}
    for label, token in zip(labels, token_ids, strict=True):
        if token in first:
            same = (
                f"{label!r} is given twice"
                if first[token] == label
                else f"{first[token]!r} and {label!r} are one token"
            )
            raise RequestError("duplicate_label", f"labels must be distinct; {same}", "labels")
        first[token] = label


def _is_set(entry: Any) -> bool:
    """Whether an entry of `continuations` is one item's own texts, and not a text or its token ids."""
    return is_list(entry) and len(entry) > 0 and (isinstance(entry[0], str) or is_list(entry[0]))


def _check_options(request: ScoreRequest) -> None:
    t = request.temperature
    if isinstance(t, bool) or not isinstance(t, int | float) or not 0 < t <= sys.float_info.max:
        raise RequestError(
            "invalid_temperature", f"temperature must be a finite number above 0; got {shown(t)}", "temperature"
        )
    if t != 1.0 and not request.apply_softmax:
        raise RequestError(
            "invalid_temperature",
            f"temperature {t} needs apply_softmax=true: full-vocabulary scores take none",
            "temperature",
        )
    if request.mode not in MODES:
        raise RequestError("invalid_mode", f"mode must be one of {', '.join(MODES)}; got {shown(request.mode)}", "mode")
    for name in ("apply_softmax", "item_first", "label_mass", "add_special_tokens", "return_prompt", "return_trace"):
        if not isinstance(getattr(request, name), bool):
            raise RequestError(
                f"invalid_{name}", f"{name} must be true or false; got {shown(getattr(request, name))}", name
            )
