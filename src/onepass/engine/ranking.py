"""Ranking as a view of scoring: which request asks a model how well documents answer a query, and what its result says.

The words and the method are a model's `loading.rerankers.templates.Ranker`; running the request is the engine's work.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from onepass.api import ChatOptions, Mode, RankedItem, Ranking, ScoreRequest, ScoreResult, text_of
from onepass.errors import RequestError, shown
from onepass.loading.rerankers.readouts import LabelProbability, Readout
from onepass.loading.rerankers.templates import LABEL, METHODS, Ranker, RankMethod

AFTER_CHAT = ("yes", "no")  # what a chat model answers: its turn begins on a new line, so without a space

AskedMethod = Literal["auto", "likelihood", "label"]


def chosen_method(ranker: Ranker, method: Any) -> RankMethod:
    if method not in ("auto", *METHODS):
        raise RequestError("invalid_method", f"method must be auto, {', '.join(METHODS)}; got {method!r}", "method")
    if method == "auto" and ranker.problem:
        raise RequestError("unknown_reranker", ranker.problem, "method")
    return ranker.method if method == "auto" else method


@dataclass(frozen=True)
class RankReading:
    """How a ranking is read from a result: by `method`, and with labels of the model's own template by `readout`."""

    method: RankMethod
    readout: Readout | None = None


@dataclass(frozen=True, kw_only=True)
class RankRequest:
    """What `rank` was given. With labels, the query and items are scored as they are; without, in the words of the
    model's template. `messages` take the place of the query: a whole prompt with a place for the document, read by the
    labels, or by the model's own read-out. `apply_softmax` None: as the method has it. Without `return_documents` a
    ranked item has its index and score only."""

    query: Any = None
    items: Any = None
    method: AskedMethod = "auto"
    top: int | None = None
    instruction: str | None = None
    return_documents: bool = True
    labels: Sequence[str] | None = None
    label_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None
    apply_softmax: bool | None = None
    temperature: float = 1.0
    item_first: bool = False
    delimiter_token_id: int | None = None
    mode: Mode = "auto"
    label_mass: bool = True
    messages: Any = None
    chat: ChatOptions | None = None
    return_prompt: bool = False


def one_of(items: Any, documents: Any) -> Any:
    """`rank` calls them items, as `score` does; rerankers call them documents."""
    if items is not None and documents is not None:
        raise RequestError("conflicting_items", "give items or documents, not both", "documents")
    return documents if items is None else items


def score_request(ranker: Ranker, call: RankRequest) -> tuple[ScoreRequest, RankReading]:
    """What `rank` scores, and how the result is read."""
    top = call.top
    if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 0):
        raise RequestError("invalid_top", f"top must be a whole number of at least 0; got {top!r}", "top")
    rest: dict[str, Any] = {
        name: getattr(call, name)
        for name in ("temperature", "item_first", "delimiter_token_id", "mode", "label_mass", "apply_softmax")
        if getattr(call, name) is not None
    }
    rest["return_prompt"] = call.return_prompt
    if call.messages is not None:
        return _conversation_request(ranker, call, rest)
    chosen_method(ranker, call.method)
    if call.labels is None and call.label_token_ids is None:
        return ranking_request(ranker, call.method, call.query, call.items, call.instruction, **rest)
    if call.method == "likelihood":
        raise RequestError("conflicting_labels", "method 'likelihood' takes no labels", "labels")
    rest |= {"labels": call.labels, "label_token_ids": call.label_token_ids}
    return ScoreRequest(query=call.query, items=call.items, **rest), RankReading("label")


def _conversation_request(ranker: Ranker, call: RankRequest, rest: dict[str, Any]) -> tuple[ScoreRequest, RankReading]:
    """Documents as items of a conversation. Its words are the caller's; what is read are the labels that were given,
    what the model's own template reads, or yes against no."""
    _check_conversation(call)
    request = ScoreRequest(messages=call.messages, chat=call.chat, items=call.items)
    if call.labels is not None or call.label_token_ids is not None:
        rest |= {"labels": call.labels, "label_token_ids": call.label_token_ids}
        if _has_one_label(call):
            return replace(request, **rest), RankReading("label")
        among = rest.setdefault("apply_softmax", True) and call.temperature == 1.0
        return replace(request, **rest), RankReading("label", LabelProbability() if among else None)
    template = ranker.label
    reads_head = not template.labels and not template.label_token_ids
    if ranker.problem and call.method == "auto" and not reads_head:
        raise RequestError("unknown_reranker", f"{ranker.problem}; or give labels with the messages", "labels")
    if not reads_head:
        texts, ids = AFTER_CHAT if template == LABEL else template.labels, template.label_token_ids
        rest = {"apply_softmax": True, "labels": texts or None, "label_token_ids": ids or None} | rest
    return replace(request, **rest), RankReading("label", template.readout)


def _has_one_label(call: RankRequest) -> bool:
    """Probabilities among the labels say nothing where there is one. A list of ids may be one per item."""
    labels: Any = call.labels if call.labels is not None else call.label_token_ids
    if isinstance(labels, list | tuple) and labels and isinstance(labels[0], list | tuple):
        labels = labels[0]
    return isinstance(labels, list | tuple) and len(labels) == 1


def _check_conversation(call: RankRequest) -> None:
    for name in ("query", "instruction"):
        if getattr(call, name) is not None:
            raise RequestError(f"conflicting_{name}", f"give messages or {name}, not both", name)
    if call.method not in ("auto", "label"):
        message = f"with messages, method must be auto or label: there is no query to be likely; got {call.method!r}"
        raise RequestError("invalid_method", message, "method")


def ranking_of(reading: RankReading, call: RankRequest, result: ScoreResult) -> Ranking:
    keys = rank_scores(reading, result)
    scores = keys if reading.method == "likelihood" else relevance(reading, result)
    ranked = [
        RankedItem(i, scores[i], text_of(call.items, i) if call.return_documents else None)
        for i in best_first(keys)[: call.top]
    ]
    return Ranking(ranked, reading.method, replace(result, items=call.items))


def ranking_request(
    ranker: Ranker,
    method: AskedMethod,
    query: Any,
    documents: Any,
    instruction: str | None = None,
    **fields: Any,
) -> tuple[ScoreRequest, RankReading]:
    """What to score, and how the result is to be read. `fields` are `ScoreRequest`'s."""
    by = chosen_method(ranker, method)
    _check(query, documents)
    template = ranker.template(by)
    words = template.fill(query, instruction)
    items = [words.item(str(d)) for d in ([documents] if isinstance(documents, str) else documents)]
    wanted: dict[str, Any] = {"add_special_tokens": template.add_special_tokens}
    if by == "likelihood":
        wanted |= {"continuations": [words.continuation]}
    elif template.labels or template.label_token_ids:
        ids = template.label_token_ids
        wanted |= {"apply_softmax": True, "labels": template.labels or None, "label_token_ids": ids or None}
    request = ScoreRequest(query=words.context, items=items, **{**wanted, **fields})
    return request, RankReading(by, template.readout if by == "label" else None)


def rank_scores(reading: RankReading, result: ScoreResult) -> list[float]:
    """What documents are sorted by, before any activation: log P(query | document), log-odds of yes against no."""
    if reading.readout is not None:
        return [reading.readout.raw(row) for row in result.logits]
    if reading.method == "label":
        return [row[0] for row in result.scores]
    assert result.continuations is not None
    return [row[0].logprob for row in result.continuations]


def relevance(reading: RankReading, result: ScoreResult) -> list[float]:
    """The same order as rerank clients expect it: the model's own score, such as P(yes) against P(no), or the geometric
    mean of the query tokens' probabilities (every document is asked for the same tokens, so the order stays)."""
    if reading.readout is not None:
        return [reading.readout.score(row) for row in result.logits]
    if reading.method == "label":
        return rank_scores(reading, result)
    assert result.continuations is not None
    return [math.exp(row[0].mean_logprob) for row in result.continuations]


def best_first(scores: Sequence[float]) -> list[int]:
    """Indices by falling score; of equal ones, the earlier first."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))


def _check(query: Any, documents: Any) -> None:
    if query is None or query == "":
        code, got = ("missing_query", "none") if query is None else ("empty_query", "''")
        raise RequestError(code, f"ranking needs a query; got {got}", "query")
    if not isinstance(documents, Sequence):
        code = "missing_items" if documents is None else "invalid_items_type"
        raise RequestError(code, f"items must be a list of strings; got {shown(documents)}", "items")
    if not isinstance(query, str) or not all(isinstance(document, str) for document in documents):
        raise RequestError(
            "template_needs_text", "ranking by the model's template needs text; with token ids give labels", "query"
        )
