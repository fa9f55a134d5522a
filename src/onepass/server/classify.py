"""Classes and rewards over HTTP: prompts tokenised on a thread, grouped by their beginnings, read, and answered.

    body ─► prompts ─► token ids ─► groups with a shared beginning ─► one engine request per group ─► rows

Bodies and answers are `schema.classification`'s; which classes there are is `classes`'.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from onepass.api import ChatOptions, ScoreRequest, ScoreResult
from onepass.engine.encoding.chat import check_messages_size
from onepass.engine.encoding.ids import Ids, ids_of
from onepass.engine.encoding.text_limits import naming
from onepass.errors import RequestError, TooLong
from onepass.loading.chat.prompt import conversation_text
from onepass.server.classes import ServedClasses, classes_of
from onepass.server.engines.service import Caller, Served
from onepass.server.handlers import Ask
from onepass.server.prompt_groups import shared_beginnings
from onepass.server.schema import tei
from onepass.server.schema.classification import classify, predict, rewards
from onepass.server.schema.classification.call import (
    ClassCall,
    Classified,
    ClassRow,
    Conversation,
    Pair,
    Prompt,
    PromptLimit,
)
from onepass.server.tokenizer_threads import text_size
from onepass.server.truncation import sufficient_part

AT_ONCE = 64  # requests to the engine that one call has open
Parse = Callable[[dict[str, Any], tuple[str, ...], int], ClassCall]


async def answer_classify(ask: Ask) -> Any:
    call, classified = await _classified(ask, classify.parse)
    return classify.answer(call, classified, ask.exchange, int(time.time()))


async def answer_pooling(ask: Ask) -> Any:
    call, classified = await _classified(ask, classify.parse_pooling)
    return classify.pooling_answer(call, classified, ask.exchange, int(time.time()))


async def answer_predict(ask: Ask) -> Any:
    ask.exchange.error_body = tei.error_body
    return predict.answer(*await _classified(ask, predict.parse))


async def answer_get_reward(ask: Ask) -> Any:
    _, classified = await _classified(ask, rewards.parse_openrlhf, reward=True)
    return rewards.openrlhf_answer(classified)


async def answer_rewards(ask: Ask) -> Any:
    return rewards.answer(*await _classified(ask, rewards.parse, reward=True))


async def _classified(ask: Ask, parse: Parse, reward: bool = False) -> tuple[ClassCall, Classified]:
    call = parse(ask.body, ask.names, ask.priority)
    classes = classes_of(ask.service.served, call.labels)
    if reward:
        classes.reward([0.0] * len(classes.names))  # a model without a reward is refused before anything runs
    caller = ask.caller(call.priority)
    size = sum(map(_size, call.prompts))
    prompts = await ask.service.with_tokenizer(lambda served: encode_prompts(call, served), size, caller)
    logits, results = await _read(ask, [prompt.ids for prompt in prompts], classes, caller)
    rows = tuple(
        ClassRow(row, row if call.raw else classes.probabilities(row), prompt.truncated)
        for row, prompt in zip(logits, prompts, strict=True)
    )
    return call, Classified(classes.names, rows, tuple(results), classes.reward)


async def _read(
    ask: Ask, prompts: list[Ids], classes: ServedClasses, caller: Caller
) -> tuple[list[list[float]], list[ScoreResult]]:
    """The classes' logits after each prompt, by one request for each group of prompts that begin alike."""
    out: list[list[float]] = [[] for _ in prompts]
    some = asyncio.Semaphore(AT_ONCE)

    async def read(members: list[int], shared: int) -> ScoreResult:
        request = ScoreRequest(
            query=list(prompts[members[0]][:shared]),
            items=[list(prompts[number][shared:]) for number in members],
            apply_softmax=True,
            label_mass=False,
            **classes.fields,
        )
        async with some:
            result = await ask.service.score(request, caller)
        ask.exchange.note(result)
        for number, row in zip(members, result.logits, strict=True):
            out[number] = row
        return result

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(read(*one)) for one in shared_beginnings(prompts)]
    except* Exception as errors:
        raise errors.exceptions[0] from None
    return out, [task.result() for task in tasks]


@dataclass(frozen=True)
class EncodedPrompt:
    ids: Ids
    truncated: bool = False


def encode_prompts(call: ClassCall, served: Served) -> list[EncodedPrompt]:
    """The token ids of every prompt, cut where the call says so, and checked against the model's limit."""
    encoder = PromptEncoder(call, served)
    out = []
    for prompt, name in zip(call.prompts, call.names, strict=True):
        with naming(name, name):
            encoded = encoder.encode(prompt, name)
        if not encoded.ids:
            raise RequestError("empty_prompt", f"{name} must have at least one token; got none", name)
        if len(encoded.ids) > served.max_position:
            raise TooLong(f"{name} has {len(encoded.ids):,} tokens; the limit is {served.max_position:,}", name)
        out.append(encoded)
    return out


@dataclass(frozen=True)
class PromptEncoder:
    call: ClassCall
    served: Served

    def encode(self, prompt: Prompt, name: str) -> EncodedPrompt:
        served, call = self.served, self.call
        if not isinstance(prompt, str | Pair | Conversation):
            return self._cut(ids_of(prompt, served.vocab_size, name, "invalid_input"))
        if served.tokenizer is None:
            raise RequestError("no_tokenizer", f"{served.model} has no tokenizer: it takes token ids only", name)
        if isinstance(prompt, Pair):
            return self._pair(prompt)
        if isinstance(prompt, str):
            return self._text(prompt, call.add_special_tokens)
        options = call.chat or ChatOptions()
        complete = served.class_head is not None
        check_messages_size(served.tokenizer, prompt.messages, served.max_position)
        return self._text(conversation_text(served.chat, prompt.messages, options, complete=complete), False)

    def _text(self, text: str, special: bool) -> EncodedPrompt:
        tokenizer = self.served.tokenizer
        assert tokenizer is not None
        before, after = tokenizer.added_tokens if special else ([], [])
        if self.call.limit is None:
            return EncodedPrompt((*before, *tokenizer.encode_item(text, self.served.max_position), *after))
        room = max(0, self._limit(self.call.limit) - len(before) - len(after))
        part = sufficient_part(tokenizer, text, room, self.call.limit.side)
        kept = self._cut(tuple(tokenizer.encode_item(part)), room)
        return EncodedPrompt((*before, *kept.ids, *after), kept.truncated or part != text)

    def _pair(self, pair: Pair) -> EncodedPrompt:
        """In the words of the model's reranking template where it has one, else as its tokenizer joins two texts."""
        served, limit = self.served, self.served.max_position
        tokenizer, ranker = served.tokenizer, served.ranker
        assert tokenizer is not None
        if ranker.method != "label" or ranker.problem:
            second = pair.second
            if self.call.limit is not None:
                second = sufficient_part(tokenizer, second, limit, self.call.limit.side)
            for text in (pair.first, second):  # refused in pieces, before both are tokenised as one
                tokenizer.encode_item(text, limit)
            encoded = self._cut(tuple(tokenizer.encode_pair(pair.first, second)))
            return replace(encoded, truncated=encoded.truncated or second != pair.second)
        words = ranker.label.fill(pair.first)
        encode = tokenizer.encode_query if ranker.label.add_special_tokens else tokenizer.encode_item
        context, item = encode(words.context, limit), words.item(pair.second)
        ids = (*context, *tokenizer.encode_item(item, limit))
        if self.call.limit is None or len(ids) <= self._limit(self.call.limit):
            return EncodedPrompt(ids)
        room = self._limit(self.call.limit) - len(ids) + len(tokenizer.encode_item(pair.second))
        if room < 0:
            raise TooLong(f"the first text and the template leave no tokens for the second, of {limit:,}", "inputs")
        second = tokenizer.decode(self._cut(tuple(tokenizer.encode_item(pair.second)), room).ids)
        return EncodedPrompt((*context, *tokenizer.encode_item(words.item(second), limit)), True)

    def _cut(self, ids: Ids, room: int | None = None) -> EncodedPrompt:
        limit = self.call.limit
        if limit is None:
            return EncodedPrompt(ids)
        room = self._limit(limit) if room is None else room
        if len(ids) <= room:
            return EncodedPrompt(ids)
        return EncodedPrompt(ids[:room] if limit.side == "right" else ids[len(ids) - room :], True)

    def _limit(self, limit: PromptLimit) -> int:
        return min(limit.tokens or self.served.max_position, self.served.max_position)


def _size(prompt: Prompt) -> int:
    if isinstance(prompt, Pair):
        return len(prompt.first) + len(prompt.second)
    return text_size(prompt.messages if isinstance(prompt, Conversation) else prompt)
