"""Typed decisions over HTTP: the dialect by the body's shape, a plan made on a tokenizer's thread, one engine request.

| body                                              | dialect   |
|---------------------------------------------------|-----------|
| `candidates`, or `state` with a list of questions | onepass   |
| an object of questions                            | systemone |
| a list of questions with `id`                     | sglang    |
| a list of questions                               | openai    |
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from onepass.decisions.decider import DecisionPlan
from onepass.decisions.questions import DecisionRequest
from onepass.errors import RequestError
from onepass.loading.tokenizer import LOOKED_UP_CHARS, UnknownText
from onepass.server.engines.admission import MAX_SCORES
from onepass.server.engines.service import Served
from onepass.server.handlers import Ask
from onepass.server.http.errors import HttpError
from onepass.server.schema.decisions import native as decisions
from onepass.server.schema.decisions import openai as openai_decisions
from onepass.server.schema.decisions import sglang as sglang_decisions
from onepass.server.schema.decisions import systemone
from onepass.server.schema.decisions.fields import DecisionCall
from onepass.server.tokenizer_threads import FEW_TEXTS, text_size

DIALECT_HEADER = "x-onepass-dialect"
SYSTEMONE_ID_HEADER = "x-typesafe-request-id"
Parse = Callable[[dict[str, Any], tuple[str, ...], int], DecisionCall]


async def answer_decisions(ask: Ask) -> Any:
    if decisions.is_own(ask.body):
        return await _decide(ask, decisions.parse)
    if systemone.is_systemone(ask.body):
        return await answer_systemone(ask)
    return await _decide(
        ask, sglang_decisions.parse if sglang_decisions.is_sglang(ask.body) else openai_decisions.parse
    )


async def answer_systemone(ask: Ask) -> Any:
    """A wrong body is 422 here, with the places that are wrong."""
    ask.exchange.headers[SYSTEMONE_ID_HEADER] = ask.exchange.request_id
    questions = ask.body.get("questions")
    keys = tuple(questions) if isinstance(questions, dict) else ()
    ask.exchange.error_body = partial(systemone.error_body, keys=keys)
    try:
        return await _decide(ask, systemone.parse)
    except RequestError as error:
        raise HttpError(422, error.code, str(error), param=error.param) from error


async def _decide(ask: Ask, parse: Parse) -> Any:
    call = parse(ask.body, ask.names, ask.priority)
    ask.exchange.headers[DIALECT_HEADER] = call.dialect
    _check_size(call.request)
    caller = ask.caller(call.priority)
    served = ask.service.served
    decider = served.decider
    plan = _quick_plan(call, served)
    if plan is None:
        plan = await ask.service.with_tokenizer(
            lambda served: decider.plan(call.request, served.tokenizer), _size(call), caller
        )
    scored = await ask.service.score(replace(plan.score_request, return_prompt=call.return_prompt), caller)
    ask.exchange.note(scored)
    answer = call.answer(call, plan, plan.result(scored))
    return answer if scored.prompt is None else {**answer, "prompt": decisions.prompt_answer(plan, scored.prompt)}


def _check_size(request: DecisionRequest) -> None:
    """Before a text is made: a small body can ask for millions of prompts. What is not a number is told by `check`."""
    reads = sum(len(one.options) * min(request.permutations, len(one.options)) for one in request.questions)
    scores = reads * len(request.candidates or (0,))
    if scores > MAX_SCORES:
        raise RequestError(
            "too_many_scores",
            "options of all questions, times permutations, times candidates, must be at most "
            f"{MAX_SCORES:,}; got {scores:,}. Send several requests",
            "questions",
        )


def _quick_plan(call: DecisionCall, served: Served) -> DecisionPlan | None:
    """Without a thread, where all texts are short and of known words: that takes less time than waking one."""
    request = call.request
    few = len(request.questions) * request.permutations + len(request.candidates or ()) <= FEW_TEXTS
    if served.tokenizer is None or not few or _size(call) > LOOKED_UP_CHARS:
        return None
    if isinstance(request.state, str) and not served.tokenizer.seems_known(request.state):
        return None
    try:
        return served.decider.plan(request, served.tokenizer.quick())
    except UnknownText:
        return None


def _size(call: DecisionCall) -> int:
    """Characters that are tokenised, about: of a state that is no text, its JSON."""
    state = call.request.state
    own = len(state) if isinstance(state, str) else len(repr(state))
    options = sum(len(q.instructions) + sum(len(o.text) + 8 for o in q.options) for q in call.request.questions)
    return own + options * call.request.permutations + text_size(call.request.candidates or ())
