"""Pairs of context and continuation: grouped by context, cut like the harness does it, and scored as one by one."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from onepass.api import ScoreRequest, ScoreResult
from onepass.errors import RequestError
from onepass.integrations.loglikelihood import Pair, groups_of, loglikelihoods, truncated
from onepass.scorer import Scorer

TOLERANCE = 1e-4
SHARED = tuple(range(10, 40))
PAIRS = [
    Pair((*SHARED, 5), (7,)),
    Pair((1, 2, 3), (4, 5, 6)),
    Pair((*SHARED, 5), (8, 9)),
    Pair((*SHARED, 6), (7,)),
    Pair((*SHARED, 5), (7,)),
    Pair((1,), (2, 3)),
]


@pytest.fixture(scope="module")
def scorer(checkpoint: Callable[[str], Path]) -> Iterator[Scorer]:
    options = {"dtype": "float32", "keep_programs": False, "max_batch_tokens": 256, "cache_bytes": 1 << 24}
    with Scorer.load(str(checkpoint("qwen3")), **options) as scorer:  # type: ignore[arg-type]
        yield scorer


class Counting:
    """Hands requests on and counts them."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self.requests: list[ScoreRequest] = []
        self.out = self.most = 0

    def submit(self, request: ScoreRequest) -> "Future[ScoreResult]":
        self.requests.append(request)
        self.out += 1
        self.most = max(self.most, self.out)
        return self._scorer.submit(request)


def test_pairs_with_one_context_are_one_request() -> None:
    groups = groups_of(PAIRS)
    assert [group.context for group in groups] == sorted({pair.context for pair in PAIRS})
    (group,) = [group for group in groups if group.context == (*SHARED, 5)]
    assert group.pairs == {(7,): [0, 4], (8, 9): [2]}


def test_grouped_pairs_score_as_one_by_one(scorer: Scorer) -> None:
    counting = Counting(scorer)
    together = dict(loglikelihoods(counting, PAIRS))
    assert sorted(together) == list(range(len(PAIRS)))
    assert len(counting.requests) == 4
    for number, pair in enumerate(PAIRS):
        joined = [list(pair.context + pair.continuation[:n]) for n in range(len(pair.continuation))]
        alone = [
            scorer.score(ids, [[]], label_token_ids=[token], mode="serial")
            for ids, token in zip(joined, pair.continuation, strict=True)
        ]
        wanted = sum(result.logprobs[0][0] for result in alone if result.logprobs)
        assert together[number].logprob == pytest.approx(wanted, abs=TOLERANCE)
    assert together[0] == together[4]


def test_greedy_continuations_are_told(scorer: Scorer) -> None:
    every = list(range(scorer.model.config.vocab_size))
    logits = scorer.score([1, 2, 3], [[]], label_token_ids=every).logits[0]
    best = max(every, key=logits.__getitem__)
    other = (best + 1) % len(every)
    read = dict(loglikelihoods(scorer, [Pair((1, 2, 3), (best,)), Pair((1, 2, 3), (other,))]))
    assert (read[0].is_greedy, read[1].is_greedy) == (True, False)


def test_no_more_requests_are_out_than_asked_for(scorer: Scorer) -> None:
    class Slow(Counting):
        def submit(self, request: ScoreRequest) -> "Future[ScoreResult]":
            future = super().submit(request)
            future.result()
            self.out -= 1
            return future

    counting = Slow(scorer)
    assert len(dict(loglikelihoods(counting, PAIRS, in_flight=1))) == len(PAIRS)
    assert counting.most == 1


def test_an_error_ends_the_iteration(scorer: Scorer) -> None:
    with pytest.raises(RequestError, match="from 0 to"):
        dict(loglikelihoods(scorer, [PAIRS[0], Pair((1,), (10**6,))]))


def test_contexts_are_cut_at_their_beginning() -> None:
    """The last token of a continuation is predicted, and not part of the model's input."""
    assert truncated([1, 2, 3, 4], [5, 6], 10) == Pair((1, 2, 3, 4), (5, 6))
    assert truncated([1, 2, 3, 4], [5, 6], 4) == Pair((2, 3, 4), (5, 6))
    assert truncated([1, 2, 3, 4], [5, 6], 2) == Pair((4,), (5, 6))
    with pytest.raises(RequestError, match="2 tokens; the model takes 1"):
        truncated([1, 2], [5, 6], 1)
    with pytest.raises(RequestError, match="at least one token"):
        truncated([], [5], 4)
