"""A rerank request carried out: documents cut if that was asked, one request to the engine, the best first.

Bodies and answers are `schema`'s; the words and the method are the model's `Ranker`.
"""

import asyncio
import math
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from onepass.api import ScoreResult
from onepass.engine.ranking import best_first, rank_scores, ranking_request, relevance
from onepass.loading.templates import RankMethod
from onepass.server.exchange import Exchange
from onepass.server.schema.pair_score import Pairs
from onepass.server.schema.rerank import Ranked, Rerank, Reranked
from onepass.server.service import Service
from onepass.server.truncation import Question, cut_documents

AT_ONCE = 16  # requests to the engine that one request for pairs may have out


async def rerank(service: Service, exchange: Exchange, asked: Rerank) -> Reranked:
    served = service.served
    documents: Sequence[str] = asked.documents
    was_cut = [False] * len(documents)
    if asked.cut is not None:
        question = Question(asked.query, asked.instruction, asked.method)
        documents, was_cut = await asyncio.to_thread(cut_documents, documents, asked.cut, question, served)
    request, method = ranking_request(served.ranker, asked.method, asked.query, documents, asked.instruction)
    result = await service.score(request, replace(exchange.caller, priority=asked.priority))
    exchange.note(result)
    scores = scores_of(method, result, asked.raw_scores)
    order = best_first(rank_scores(method, result))[: asked.top]
    ranked = tuple(Ranked(i, scores[i], was_cut[i]) for i in order)
    return Reranked(ranked, result, f"rerank-{exchange.request_id}", exchange.seconds)


async def score_pairs(service: Service, exchange: Exchange, asked: Pairs) -> tuple[list[float], list[ScoreResult]]:
    """A score for each pair, by one request to the engine for each distinct query, side by side."""
    scores = [0.0] * len(asked.documents)
    caller = replace(exchange.caller, priority=asked.priority)
    some = asyncio.Semaphore(AT_ONCE)

    async def one_query(query: str, places: list[int]) -> ScoreResult:
        documents = [asked.documents[i] for i in places]
        request, method = ranking_request(service.served.ranker, asked.method, query, documents, asked.instruction)
        async with some:
            result = await service.score(request, caller)
        exchange.note(result)
        for i, score in zip(places, scores_of(method, result, asked.raw_scores), strict=True):
            scores[i] = score
        return result

    return scores, await _all([one_query(query, places) for query, places in asked.by_query().items()])


def scores_of(method: RankMethod, result: ScoreResult, raw: bool) -> list[float]:
    """From 0 to 1, or raw: log-odds of yes against no, log-probability of the query."""
    if not raw:
        return relevance(method, result)
    if method == "likelihood":
        return rank_scores(method, result)
    return [row[0] - _log_sum_exp(row[1:]) for row in result.logits]


def _log_sum_exp(values: Sequence[float]) -> float:
    highest = max(values)
    return highest + math.log(sum(math.exp(value - highest) for value in values))


async def _all[T](work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, or the first error, the others then cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except* Exception as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
