"""A `ScoreRequest` into token ids, checked: every mistake of a caller is raised here, and nowhere later.

Query and items are encoded apart and joined as ids, in every mode. Each field has its file: `query_items`, `labels`,
`classes`, `continuations`, `chat`; what may stand for ids is `ids`. What runs, and how, is `engine.planner`.
"""

import sys
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from onepass.api import MODES, ScoreRequest
from onepass.engine.encoding.branches import BranchedRequest
from onepass.engine.encoding.chat import ChatContext, chat_token_ids
from onepass.engine.encoding.classes import class_ids
from onepass.engine.encoding.continuations import continuation_sets
from onepass.engine.encoding.ids import Ids
from onepass.engine.encoding.labels import label_set, label_sets
from onepass.engine.encoding.query_items import item_ids, query_ids
from onepass.engine.encoding.reader import IdReader
from onepass.engine.encoding.text_limits import naming
from onepass.errors import RequestError, TooLong, shown
from onepass.loading.chat.template import ChatTemplates
from onepass.loading.rerankers.readouts import ClassHead


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
class Encoder(IdReader):
    """Encodes and checks the requests to one model."""

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
        query = query_ids(self, request) if context is None else context
        items, flat = item_ids(self, request, text_query=isinstance(request.query, str), free=context is not None)
        delimiter = () if request.delimiter_token_id is None else (self._delimiter(request.delimiter_token_id),)
        labels = self._labels(request, len(items))
        continuations = continuation_sets(self, request, len(items))
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
        query = query_ids(self, request)
        items, flat = item_ids(self, request, text_query=False, free=False)
        branches = tuple(self.ids(ids, f"branches[{i}]", "invalid_branches") for i, ids in enumerate(request.branches))
        if not branches or not all(branches) or not all(items):
            raise RequestError("invalid_branches", "items and branches must have at least one token each", "branches")
        num_labels = self.vocab_size if self.class_head is None else len(self.class_head.labels)
        labels = tuple(
            label_set(ids, num_labels, f"branch_label_token_ids[{i}]")
            for i, ids in enumerate(request.branch_label_token_ids)
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
                self.tokenizer_for("messages"),
                self.chat,
                request,
                complete=self.class_head is not None,
                limit=self.max_position,
            )
        labels = self._labels(request, len(prompts.items))
        continuations = continuation_sets(self, request, len(prompts.items))
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
            ids = query_ids(self, ScoreRequest(query=query))
        self._check_query_length(ids)
        return ids

    def _chat_request(self, context: ChatContext) -> ScoreRequest:
        """A request that has the context's messages, an empty item, and any label."""
        labels = None if self.class_head is not None else [0]
        return ScoreRequest(messages=context.messages, chat=context.chat, items=[""], label_token_ids=labels)

    def _labels(self, request: ScoreRequest, num_items: int) -> tuple[Ids, ...]:
        if self.class_head is not None:
            return class_ids(self.class_head, request, num_items)
        return label_sets(self, request, num_items)

    def _delimiter(self, token: Any) -> int:
        return self.ids([token], "delimiter_token_id", "invalid_token_id_type")[0]

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
