"""Log-probabilities of whole prompts, by requests for continuations: what `/v1/completions` answers is read here.

    prompts ─► ids ─► shared beginnings ─► one request per context ─► what was read at each token

A prompt's tokens are a continuation of its first token. Prompts with a beginning in common continue that beginning as a
context, which is computed once for its own tokens' log-probabilities and once for all that follow it. The answer
is written in `schema.completion_choice`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onepass.api import Continuation, ScoreRequest, ScoreResult
from onepass.engine.encoding.ids import Ids, ids_of
from onepass.errors import RequestError, TooLong, shown
from onepass.loading.tokenizer import TextTooLong
from onepass.server.engines.service import Served, Service
from onepass.server.http.request_context import RequestContext
from onepass.server.prompt_groups import shared_beginnings
from onepass.server.schema.completion_choice import Prompt, PromptRead
from onepass.server.schema.completions import MAX_PROMPTS, CompletionCall
from onepass.server.tokenizer_threads import text_size

AT_ONCE = 8  # requests to the engine that one call has open
NEXT = 0  # stands for the token after a prompt: only what is most likely in its place is read


@dataclass
class ReadPlan:
    """Which continuations of which contexts are scored, each once, and which of them make up each prompt."""

    continuations: dict[Ids, dict[Ids, int]] = field(default_factory=dict)
    prompts: list[list[tuple[Ids, int]]] = field(default_factory=list)

    def add(self, context: Ids, tokens: Ids) -> list[tuple[Ids, int]]:
        if not tokens:
            return []
        known = self.continuations.setdefault(context, {})
        return [(context, known.setdefault(tokens, len(known)))]


async def read_prompts(
    service: Service, exchange: RequestContext, call: CompletionCall
) -> tuple[list[Prompt], list[PromptRead], list[ScoreResult]]:
    caller = replace(exchange.caller, priority=call.priority)
    size = text_size(call.prompt)
    prompts = await service.with_tokenizer(lambda served: encode_prompts(call, served), size, caller)
    plan = plan_reads([prompt.ids for prompt in prompts], call.reads_prompt, call.max_tokens == 1)
    some = asyncio.Semaphore(AT_ONCE)

    async def score(context: Ids, texts: dict[Ids, int]) -> ScoreResult:
        request = ScoreRequest(query=list(context), items=[[]], continuations=[list(text) for text in texts])
        async with some:
            result = await service.score(request, caller)
        exchange.note(result)
        return result

    try:
        async with asyncio.TaskGroup() as group:
            tasks = {key: group.create_task(score(key, texts)) for key, texts in plan.continuations.items()}
    except* Exception as errors:
        raise errors.exceptions[0] from None
    results = {key: task.result() for key, task in tasks.items()}
    return prompts, [_joined(results, parts) for parts in plan.prompts], list(results.values())


def plan_reads(prompts: Sequence[Ids], whole: bool, following: bool) -> ReadPlan:
    """`whole`: every token of a prompt is read; `following`: what comes after it is, too."""
    plan = ReadPlan(prompts=[[] for _ in prompts])
    after = (NEXT,) if following else ()
    if not whole:
        for number, ids in enumerate(prompts):
            plan.prompts[number] = plan.add(ids, after)
        return plan
    for members, shared in shared_beginnings(prompts):
        for number in members:
            ids = prompts[number]
            if len(members) > 2:
                parts = plan.add(ids[:1], ids[1:shared]) + plan.add(ids[:shared], ids[shared:] + after)
            else:  # two would be computed twice in either way
                parts = plan.add(ids[:1], ids[1:] + after)
            plan.prompts[number] = parts
    return plan


def _joined(results: dict[Ids, ScoreResult], parts: Sequence[tuple[Ids, int]]) -> PromptRead:
    read = PromptRead()
    for context, number in parts:
        rows = results[context].continuations
        assert rows is not None
        text: Continuation = rows[0][number]
        read += PromptRead(text.token_logprobs, text.best_token_ids, text.best_logprobs)
    return read


def encode_prompts(call: CompletionCall, served: Served) -> list[Prompt]:
    """One prompt, or several of one kind, with their token ids checked."""
    given = call.prompt
    single = isinstance(given, str) or (isinstance(given, list) and bool(given) and not _nested(given))
    prompts = [given] if single else given
    if not isinstance(prompts, list) or not prompts or len({isinstance(prompt, str) for prompt in prompts}) > 1:
        raise RequestError(
            "invalid_prompt", f"prompt must be texts or lists of token ids, of one kind; got {shown(given)}", "prompt"
        )
    if len(prompts) > MAX_PROMPTS:
        message = f"prompt must be at most {MAX_PROMPTS:,} prompts; got {len(prompts):,}"
        raise RequestError("too_many_prompts", message, "prompt")
    out = []
    for number, prompt in enumerate(prompts):
        name = "prompt" if single else f"prompt[{number}]"
        if isinstance(prompt, str):
            ids = _encode(prompt, name, call.add_special_tokens, served)
        else:
            ids = ids_of(prompt, served.vocab_size, name, "invalid_prompt")
        if not ids:
            raise RequestError("empty_prompt", f"{name} must have at least one token; got none", "prompt")
        if len(ids) > served.max_position:
            raise TooLong(f"{name} has {len(ids):,} tokens; the limit is {served.max_position:,}", "prompt")
        out.append(Prompt(ids, prompt if isinstance(prompt, str) else None))
    return out


def _nested(given: list[Any]) -> bool:
    return any(isinstance(entry, str | list) for entry in given)


def _encode(text: str, name: str, special: bool, served: Served) -> Ids:
    tokenizer = served.tokenizer
    if tokenizer is None:
        raise RequestError("no_tokenizer", f"this model has no tokenizer: {name} must be token ids", "prompt")
    try:
        limit = served.max_position
        return tuple(tokenizer.encode_query(text, limit) if special else tokenizer.encode_item(text, limit))
    except TextTooLong as error:
        raise TooLong(f"{name} has {error}", "prompt") from None
