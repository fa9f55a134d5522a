"""Ranking as a view of scoring: which request asks a model how well documents answer a query, and what its result says.

The words and the method are a model's `loading.templates.Ranker`; running the request is the engine's work..
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from onepass.api import RankedItem, Ranking, ScoreRequest, ScoreResult, Text, text_of
from onepass.engine.request import request_of
from onepass.errors import RequestError
from onepass.loading.templates import METHODS, Ranker, RankMethod

AskedMethod = Literal["auto", "likelihood", "label"]


def chosen_method(ranker: Ranker, method: Any) -> RankMethod:
    if method not in ("auto", *METHODS):
        raise RequestError("invalid_method", f"method must be auto, {', '.join(METHODS)}; got {method!r}", "method")
    return ranker.method if method == "auto" else method


def ask_ranking(
    ranker: Ranker, method: AskedMethod, query: Any, items: Any, top: int | None, fields: dict[str, Any]
) -> tuple[ScoreRequest, RankMethod]:
    """What `rank` scores. With labels among the fields, the query and items as they are; without, in the words of the
    model's template."""
    chosen_method(ranker, method)
    if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 0):
        raise RequestError("invalid_top", f"top must be a whole number of at least 0; got {top!r}", "top")
    if "labels" not in fields and "label_token_ids" not in fields:
        return ranking_request(ranker, method, query, items, **fields)
    if method == "likelihood":
        raise RequestError("conflicting_labels", "method 'likelihood' takes no labels", "labels")
    return request_of(query=query, items=items, **fields), "label"


def ranking_of(method: RankMethod, items: Sequence[Text], result: ScoreResult, top: int | None) -> Ranking:
    scores = rank_scores(method, result)
    ranked = [RankedItem(i, scores[i], text_of(items, i)) for i in best_first(scores)[:top]]
    return Ranking(ranked, method, replace(result, items=items))


def ranking_request(
    ranker: Ranker,
    method: AskedMethod,
    query: Any,
    documents: Any,
    instruction: str | None = None,
    **fields: Any,
) -> tuple[ScoreRequest, RankMethod]:
    """What to score, and by which method the result is to be read. `fields` are `ScoreRequest`'s."""
    by = chosen_method(ranker, method)
    _check(query, documents)
    template = ranker.template(by)
    asked: dict[str, Any] = {"apply_softmax": True, "labels": template.labels}
    if not template.labels:
        asked = {"continuations": [template.continuation.replace("{query}", query)]}
    context = template.context_with(instruction).replace("{query}", query)
    items = [
        template.item.replace("{document}", str(d)) for d in ([documents] if isinstance(documents, str) else documents)
    ]
    return request_of(query=context, items=items, **{**asked, **fields}), by


def rank_scores(method: RankMethod, result: ScoreResult) -> list[float]:
    """What documents are sorted by: log P(query | document), or P(yes) against P(no)."""
    if method == "label":
        return [row[0] for row in result.scores]
    assert result.continuations is not None
    return [row[0].logprob for row in result.continuations]


def relevance(method: RankMethod, result: ScoreResult) -> list[float]:
    """The same order as numbers from 0 to 1, as rerank clients expect: P(yes) against P(no), or the geometric mean of
    the query tokens' probabilities (every document is asked for the same tokens, so the order stays)."""
    if method == "label":
        return rank_scores(method, result)
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
        raise RequestError(code, f"items must be a list of strings; got {type(documents).__name__}", "items")
    if not isinstance(query, str) or not all(isinstance(document, str) for document in documents):
        raise RequestError(
            "template_needs_text", "ranking by the model's template needs text; with token ids give labels", "query"
        )
