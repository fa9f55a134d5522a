"""A rerank request carried out: documents cut if that was asked, one request to the engine, the best first.

Bodies and answers are `schema`'s; the words and the method are the model's `Ranker`.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onepass.api import ScoreResult
from onepass.engine.ranking import (
    RankReading,
    RankRequest,
    best_first,
    rank_scores,
    ranking_request,
    relevance,
    score_request,
)
from onepass.errors import RequestError
from onepass.server.engines.service import Caller, Served, Service
from onepass.server.http.request_context import RequestContext
from onepass.server.schema.pair_score import PairResult, Pairs
from onepass.server.schema.rerank import Ranked, Rerank, Reranked
from onepass.server.schema.text_limits import TextLimits
from onepass.server.truncation import Question, cut_documents, cut_text

AT_ONCE = 16  # requests to the engine that one request for pairs may have out


async def rerank(service: Service, exchange: RequestContext, parsed: Rerank) -> Reranked:
    served = service.served
    conversation = parsed.query.conversation
    question = Question(parsed.query.text, parsed.instruction, parsed.method, conversation)
    caller = replace(exchange.caller, priority=parsed.priority)
    texts = await within_limits(service, caller, question, parsed.documents, parsed.limits)
    call = RankRequest(
        query=texts.query,
        items=texts.documents,
        method=parsed.method,
        instruction=parsed.instruction,
        labels=parsed.query.labels,
        messages=None if conversation is None else conversation.messages,
        chat=None if conversation is None else conversation.chat,
        return_prompt=parsed.return_prompt,
    )
    request, reading = score_request(served.ranker, call)
    result = await service.score(request, caller)
    exchange.note(result)
    scores = scores_of(reading, result, parsed.raw_scores)
    order = best_first(rank_scores(reading, result))[: parsed.top]
    ranked = tuple(Ranked(i, scores[i], texts.was_cut[i]) for i in order)
    query_truncated = texts.query != parsed.query.text
    return Reranked(ranked, result, f"rerank-{exchange.request_id}", exchange.seconds, query_truncated)


@dataclass(frozen=True)
class Texts:
    """A query and documents as they are scored, and which documents were cut. No query: messages in its place."""

    query: str | None
    documents: Sequence[str]
    was_cut: Sequence[bool]


async def within_limits(
    service: Service, caller: Caller, question: Question, documents: Sequence[str], limits: TextLimits
) -> Texts:
    """The texts cut as the request asks; on a thread, for texts may be long."""
    if limits.query_tokens is None and limits.cut is None:
        return Texts(question.query, documents, [False] * len(documents))
    size = len(question.query or "") + sum(map(len, documents))
    return await service.with_tokenizer(lambda served: _cut_texts(served, question, documents, limits), size, caller)


def _cut_texts(served: Served, question: Question, documents: Sequence[str], limits: TextLimits) -> Texts:
    if limits.query_tokens is not None:
        if question.query is None:
            message = "max_tokens_per_query cuts a query; messages are not cut: leave it out"
            raise RequestError("conflicting_fields", message, "max_tokens_per_query")
        if served.tokenizer is None:
            raise RequestError("no_tokenizer", f"{served.model} has no tokenizer: it takes token ids only", "query")
        query = cut_text(served.tokenizer, question.query, limits.query_tokens, limits.side)
        question = replace(question, query=query)
    if limits.cut is None:
        return Texts(question.query, documents, [False] * len(documents))
    return Texts(question.query, *cut_documents(documents, limits.cut, question, served))


async def score_pairs(
    service: Service, exchange: RequestContext, parsed: Pairs
) -> tuple[list[PairResult], list[ScoreResult]]:
    """A score for each pair, by one request to the engine for each distinct query, side by side."""
    scores = [PairResult(0.0)] * len(parsed.documents)
    caller = replace(exchange.caller, priority=parsed.priority)
    some = asyncio.Semaphore(AT_ONCE)

    async def one_query(query: str, places: list[int]) -> ScoreResult:
        served = service.served
        question = Question(query, parsed.instruction, parsed.method)
        async with some:
            documents = [parsed.documents[i] for i in places]
            texts = await within_limits(service, caller, question, documents, parsed.limits)
            request, reading = ranking_request(
                served.ranker, parsed.method, texts.query, texts.documents, parsed.instruction
            )
            result = await service.score(request, caller)
        exchange.note(result)
        found = scores_of(reading, result, parsed.raw_scores)
        for i, score, truncated in zip(places, found, texts.was_cut, strict=True):
            scores[i] = PairResult(score, truncated)
        return result

    return scores, await _all([one_query(query, places) for query, places in parsed.by_query().items()])


def scores_of(reading: RankReading, result: ScoreResult, raw: bool) -> list[float]:
    """As the model scores, or raw: log-odds of yes against no, a logit, log-probability of the query."""
    return rank_scores(reading, result) if raw else relevance(reading, result)


async def _all[T](work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, or the first error, the others then cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except* Exception as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
