"""Of contexts with a long beginning in common one goes ahead, so that the engine computes the beginning once."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from onepass.api import ScoreRequest, ScoreResult
from onepass.integrations.loglikelihood import Pair, loglikelihoods
from onepass.integrations.shared_beginnings import LEADERS_AT_ONCE, LONG_BEGINNING, SendOrder, leaders
from onepass.scorer import Scorer

Ids = tuple[int, ...]
BEGINNING = tuple(range(100, 200))


def some_contexts(seed: int, count: int = 60) -> list[Ids]:
    """Sorted, with beginnings of many lengths in common."""
    random = np.random.default_rng(seed)
    contexts: list[Ids] = [()]
    for _ in range(count):
        earlier = contexts[random.integers(len(contexts))]
        kept = earlier[: random.integers(len(earlier) + 1)]
        contexts.append(kept + tuple(random.integers(3, size=random.integers(1, 200)).tolist()))
    return sorted(set(contexts))


def in_common(a: Ids, b: Ids) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("seed", range(5))
def test_a_leader_is_the_first_with_almost_the_longest_beginning(seed: int) -> None:
    contexts = some_contexts(seed)
    found = leaders(contexts)
    assert 0 < sum(leader is not None for leader in found) < len(found) - 1
    for number, leader in enumerate(found):
        shared = [in_common(other, contexts[number]) for other in contexts[:number]]
        longest = max(shared, default=0)
        enough = max(LONG_BEGINNING, longest - LONG_BEGINNING + 1)
        wanted = next(n for n, s in enumerate(shared) if s >= enough) if longest >= LONG_BEGINNING else None
        assert leader == wanted


def test_every_context_is_sent_once_and_after_its_leader() -> None:
    contexts = some_contexts(7)
    order, leader_of = SendOrder(contexts), leaders(contexts)
    leading = {leader for leader in leader_of if leader is not None}
    sent: list[int] = []
    done: set[int] = set()
    while len(done) < len(contexts):
        while (number := order.next()) is not None:
            assert leader_of[number] is None or leader_of[number] in done
            sent.append(number)
            assert len(leading & (set(sent) - done)) <= LEADERS_AT_ONCE
        number = next(n for n in sent if n not in done)
        order.done(number)
        done.add(number)
    assert sorted(sent) == list(range(len(contexts)))


def test_nothing_is_sent_of_nothing() -> None:
    assert SendOrder([]).next() is None


@pytest.fixture(scope="module")
def scorer(checkpoint: Callable[[str], Path]) -> Iterator[Scorer]:
    options = {"dtype": "float32", "keep_programs": False, "max_batch_tokens": 256, "cache_bytes": 1 << 24}
    with Scorer.load(str(checkpoint("qwen3")), **options) as scorer:  # type: ignore[arg-type]
        yield scorer


class Results:
    """Hands requests on and keeps what came of them."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self.futures: list[Future[ScoreResult]] = []

    def submit(self, request: ScoreRequest) -> "Future[ScoreResult]":
        self.futures.append(self._scorer.submit(request))
        return self.futures[-1]


def test_a_beginning_of_many_contexts_is_computed_once(scorer: Scorer) -> None:
    pairs = [Pair((*BEGINNING, 10 + n, 11, 12), (n,)) for n in range(12)]
    results = Results(scorer)
    together = dict(loglikelihoods(results, pairs))
    cached = [future.result().usage.cached_tokens for future in results.futures]
    assert len(cached) == len(pairs)
    assert cached[0] == 0
    assert min(cached[1:]) >= len(BEGINNING)
    for number, pair in enumerate(pairs):
        alone = scorer.score(list(pair.context), [[]], label_token_ids=list(pair.continuation), mode="serial")
        assert alone.logprobs is not None
        assert together[number].logprob == pytest.approx(alone.logprobs[0][0], abs=1e-4)
