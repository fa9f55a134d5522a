"""What each operation of the API does with its body: parse it, ask the service, make the answer.

Which path leads here is `routes`; the shapes are `schema`'s; errors are raised and become answers in `middleware`.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from starlette.datastructures import Headers

from onepass.api import ScoreResult
from onepass.errors import RequestError
from onepass.server.completions import read_prompts
from onepass.server.engines.service import Caller, Part, Served, Service
from onepass.server.http.accept import accepts
from onepass.server.http.request_context import RequestContext
from onepass.server.rerank import rerank, score_pairs
from onepass.server.schema import (
    completions,
    contexts,
    generative,
    nvidia,
    pair_score,
    sglang,
    tei,
    tokenize,
    voyage,
)
from onepass.server.schema import rerank as jina
from onepass.server.schema.completion_choice import ChoiceWriter
from onepass.server.schema.pair_score import PairResult
from onepass.server.schema.scoring import modes, score, score_answer
from onepass.server.schema.scoring.score import AskedScore
from onepass.server.schema.usage import usage_of
from onepass.server.tokenizer_threads import text_size

NDJSON = "application/x-ndjson"
COMPATIBLE = ("sglang", "infinity")  # whose answer X-Compat may ask for
# litellm sends the same bytes for Infinity as for vLLM and reads different answers: only a path can tell them apart.
INFINITY_PATH = "/infinity/rerank"


@dataclass(frozen=True)
class Ask:
    """One request to one operation."""

    service: Service
    exchange: RequestContext
    headers: Headers
    path: dict[str, str]  # what the path's braces stood for
    body: dict[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        return self.service.served.names

    @property
    def priority(self) -> int:
        return self.exchange.caller.priority

    def caller(self, priority: int) -> Caller:
        return replace(self.exchange.caller, priority=priority)


async def answer_score(ask: Ask) -> Any:
    if pair_score.is_pairs(ask.body):
        return await answer_pairs(ask)
    asked = score.parse(ask.body, ask.names, ask.priority)
    result = await ask.service.score(asked.request, ask.caller(asked.priority))
    ask.exchange.note(result)
    return score_answer.answer(asked, result, ask.exchange, int(time.time()))


async def answer_modes(ask: Ask) -> Any:
    request = modes.parse(ask.body, ask.names, ask.priority)
    caller = ask.caller(request.score.priority)
    return modes.answer(request, await ask.service.run_modes(request.score.request, request.options, caller))


def wants_lines(ask: Ask) -> bool:
    """Whether the scores are to be sent as they are ready."""
    return accepts(ask.headers, NDJSON) and not pair_score.is_pairs(ask.body)


async def score_lines(ask: Ask) -> AsyncGenerator[dict[str, Any]]:
    """The lines of a streamed answer: parts, then the summary."""
    asked: AskedScore = score.parse(ask.body, ask.names, ask.priority)
    stream = ask.service.stream(asked.request, ask.caller(asked.priority))
    async with aclosing(stream) as parts:  # type: ignore[type-var]  # an async generator, wherever it comes from
        async for one in parts:
            if isinstance(one, Part):
                yield score_answer.part(asked, one)
            else:
                assert isinstance(one, ScoreResult)
                ask.exchange.note(one)
                yield score_answer.last_line(asked, one, ask.exchange, int(time.time()))


async def answer_pairs(ask: Ask) -> Any:
    asked = pair_score.parse(ask.body, ask.names, ask.priority)
    scores, results = await score_pairs(ask.service, ask.exchange, asked)
    return pair_score.answer(asked.model, scores, usage_of(results), ask.exchange, int(time.time()))


async def answer_generative(ask: Ask) -> Any:
    asked = generative.parse(ask.body, ask.names, ask.priority)
    result = await ask.service.score(asked.request, ask.caller(asked.priority))
    ask.exchange.note(result)
    firsts = [PairResult(row[0]) for row in result.scores]
    usage = usage_of([result], completion_tokens=len(firsts))  # vLLM generates one token per item
    answer = pair_score.answer(asked.model, firsts, usage, ask.exchange, int(time.time()))
    return {**answer, "id": f"generative-scoring-{ask.exchange.request_id}"}


async def answer_completions(ask: Ask) -> Any:
    call = completions.parse(ask.body, ask.names, ask.priority)
    prompts, reads, results = await read_prompts(ask.service, ask.exchange, call)

    def choices(served: Served) -> list[dict[str, Any]]:
        writer = ChoiceWriter(call, served.tokenizer)
        return [writer.choice(n, *of) for n, of in enumerate(zip(prompts, reads, strict=True))]

    tokens = sum(len(prompt.ids) for prompt in prompts)
    written = await ask.service.with_tokenizer(choices, tokens, ask.exchange.caller)
    new = call.max_tokens * len(prompts)
    usage = {**usage_of(results), "prompt_tokens": tokens, "completion_tokens": new, "total_tokens": tokens + new}
    return completions.answer(call, written, usage, ask.exchange, int(time.time()))


async def answer_rerank(ask: Ask) -> Any:
    """The body's members, the path and the header X-Compat decide the dialect."""
    compatible = _compatible(ask)
    if tei.is_tei(ask.body):
        ask.exchange.error_body = tei.error_body
        asked = tei.parse(ask.body, ask.names, ask.priority)
        return tei.answer(asked, await rerank(ask.service, ask.exchange, asked))
    if voyage.is_voyage(ask.body):
        asked = voyage.parse(ask.body, ask.names, ask.priority)
        return voyage.answer(asked, await rerank(ask.service, ask.exchange, asked))
    echo = compatible != "" or jina.returns_documents(ask.exchange.route, ask.headers, ask.body)
    asked = jina.parse(ask.body, ask.names, ask.priority, echo)
    reranked = await rerank(ask.service, ask.exchange, asked)
    if compatible == "sglang":
        return sglang.answer(asked, reranked)
    return jina.answer(asked, reranked, "text" if compatible == "infinity" else "object")


def _compatible(ask: Ask) -> str:
    """Whose answer is wanted, where the body does not say: "sglang", "infinity" or ""."""
    compatible = ask.headers.get("x-compat", "").lower()
    if "x-compat" in ask.headers and compatible not in COMPATIBLE:
        message = f"X-Compat must be {' or '.join(COMPATIBLE)}; got {compatible[:200]!r}"
        raise RequestError("invalid_compat", message, "X-Compat")
    return "infinity" if ask.exchange.route == INFINITY_PATH else compatible


async def answer_nvidia(ask: Ask) -> Any:
    asked = nvidia.parse(ask.body, ask.names, ask.priority)
    return nvidia.answer(asked, await rerank(ask.service, ask.exchange, asked))


async def open_context(ask: Ask) -> Any:
    asked = contexts.parse(ask.body, ask.names, ask.priority)
    caller = ask.caller(asked.priority)
    return contexts.answer(await ask.service.open_context(asked.query, asked.ttl_seconds, asked.pin, caller))


async def find_context(ask: Ask) -> Any:
    return contexts.answer(await ask.service.find_context(ask.path["context_id"]))


async def close_context(ask: Ask) -> Any:
    await ask.service.close_context(ask.path["context_id"])
    return contexts.closed(ask.path["context_id"])


async def answer_tokenize(ask: Ask) -> Any:
    size = text_size(ask.body.get("prompt")) + text_size(ask.body.get("text"))
    return await ask.service.with_tokenizer(
        lambda served: tokenize.tokenize(ask.body, served), size, ask.exchange.caller
    )


async def answer_detokenize(ask: Ask) -> Any:
    size = text_size(ask.body.get("tokens"))
    return await ask.service.with_tokenizer(
        lambda served: tokenize.detokenize(ask.body, served), size, ask.exchange.caller
    )
