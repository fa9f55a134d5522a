"""Log-likelihoods of many (context, continuation) pairs: pairs with one context become one request.

This is what evaluation harnesses ask for, thousands of pairs at once. Contexts with a beginning in common (few-shot
examples) are sent such that it is computed once (`shared_beginnings`). Which pairs there are is the harness's work
(`lm_eval`).
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Protocol

from onepass.api import ScoreRequest, ScoreResult
from onepass.errors import RequestError
from onepass.integrations.shared_beginnings import Ids, SendOrder

IN_FLIGHT = 32


class Submitter(Protocol):
    """A `Scorer` or a `Client`."""

    def submit(self, request: ScoreRequest) -> "Future[ScoreResult]": ...


@dataclass(frozen=True)
class Pair:
    """A continuation of at least one token after a context of at least one."""

    context: Ids
    continuation: Ids


@dataclass(frozen=True)
class Loglikelihood:
    logprob: float
    is_greedy: bool


@dataclass
class Group:
    """Continuations of one context, each once, with the numbers of the pairs that ask for it."""

    context: Ids
    pairs: dict[Ids, list[int]] = field(default_factory=dict)

    def request(self) -> ScoreRequest:
        return ScoreRequest(query=list(self.context), items=[[]], continuations=[list(text) for text in self.pairs])


def truncated(context: Sequence[int], continuation: Sequence[int], max_length: int) -> Pair:
    """The pair with tokens cut off at the context's beginning until the model takes it. The continuation's last token
    is not part of the model's input."""
    if not context or not continuation:
        raise RequestError("empty_pair", "context and continuation must have at least one token each")
    if len(continuation) > max_length:
        raise RequestError(
            "too_long", f"a continuation has {len(continuation):,} tokens; the model takes {max_length:,}"
        )
    kept = max_length + 1 - len(continuation)
    return Pair(tuple(context[-kept:]), tuple(continuation))


def groups_of(pairs: Sequence[Pair]) -> list[Group]:
    """In the order of their contexts' tokens."""
    groups: dict[Ids, Group] = {}
    for number, pair in enumerate(pairs):
        group = groups.setdefault(pair.context, Group(pair.context))
        group.pairs.setdefault(pair.continuation, []).append(number)
    return [groups[context] for context in sorted(groups)]


def loglikelihoods(
    scorer: Submitter, pairs: Sequence[Pair], in_flight: int = IN_FLIGHT
) -> Iterator[tuple[int, Loglikelihood]]:
    """Each pair's number and log-likelihood, as they come. At most `in_flight` requests are with the scorer at a time:
    fewer where the others wait for a beginning that is being computed."""
    groups = groups_of(pairs)
    order = SendOrder([group.context for group in groups])
    running: dict[Future[ScoreResult], int] = {}
    try:
        while True:
            while len(running) < in_flight and (number := order.next()) is not None:
                running[scorer.submit(groups[number].request())] = number
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                number = running.pop(future)
                order.done(number)
                yield from _read(groups[number], future.result())
    finally:
        for future in running:
            future.cancel()


def _read(group: Group, result: ScoreResult) -> Iterator[tuple[int, Loglikelihood]]:
    assert result.continuations is not None
    for numbers, text in zip(group.pairs.values(), result.continuations[0], strict=True):
        for number in numbers:
            yield number, Loglikelihood(text.logprob, text.is_greedy)
