"""Replicas in one process: the same scores, work spread over them, contexts used where they are kept."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from checkpoints import make_checkpoint
from onepass.api import ScoreRequest
from onepass.engine.replicas import Replicas
from onepass.errors import ConfigError, ContextNotFound, RequestError
from onepass.scorer import Scorer

OPTIONS = {"dtype": "float32", "keep_programs": False, "max_batch_tokens": 64, "mode": "extend", "cache_bytes": 1 << 22}


def tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 500, count).tolist()


def request(seed: int = 0, items: int = 4) -> ScoreRequest:
    asked = [tokens(5, 100 * seed + n) for n in range(items)]
    return ScoreRequest(query=tokens(20, seed), items=asked, label_token_ids=[3, 40, 500])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("replicas") / "qwen3", "qwen3")


@pytest.fixture(scope="module")
def single(folder: Path) -> Iterator[Scorer]:
    with Scorer.load(str(folder), **OPTIONS) as scorer:
        yield scorer


@pytest.fixture(scope="module")
def double(folder: Path) -> Iterator[Scorer]:
    with Scorer.load(str(folder), tp=2, dp=2, **OPTIONS) as scorer:
        yield scorer


@pytest.fixture(autouse=True)
def _no_contexts(single: Scorer, double: Scorer) -> None:
    for scorer in (single, double):
        scorer.engine.contexts.clear()


def steps(scorer: Scorer) -> list[int]:
    return [engine.totals.steps for engine in scorer.engines]


def test_replicas_score_as_one(single: Scorer, double: Scorer) -> None:
    asked = [request(seed) for seed in (1, 2)]
    before = steps(double)
    ours = [result.scores for result in double.score_many(asked)]
    theirs = [single.score_many([one])[0].scores for one in asked]
    assert np.abs(np.array(ours) - np.array(theirs)).max() <= 1e-5
    assert all(now > then for now, then in zip(steps(double), before, strict=True)), "both of them worked"


def test_a_request_goes_where_its_context_is_kept(double: Scorer) -> None:
    double.score_many([request(11), request(12)])
    for seed in (11, 12, 12, 11):
        result = double.score_many([request(seed)])[0]
        assert result.usage.cached_tokens == 20
    assert [len(engine.contexts) for engine in double.engines] == [1, 1]


def test_a_kept_context_does_not_hold_requests_where_far_more_waits(double: Scorer) -> None:
    front = double.engine
    assert isinstance(front, Replicas)
    double.score_many([request(13)])
    home = next(at for at, engine in enumerate(double.engines) if len(engine.contexts))
    front._waiting[home] += 10_000
    try:
        double.score_many([request(13)])
    finally:
        front._waiting[home] -= 10_000
    assert [len(engine.contexts) for engine in double.engines] == [1, 1]
    assert front._waiting == [0, 0], "what is done waits no more"


def test_handles_are_found_in_any_replica(single: Scorer, double: Scorer) -> None:
    handles = [double.prefill(tokens(20, seed)) for seed in (21, 22)]
    for seed, handle in zip((21, 22), handles, strict=True):
        named = replace(request(seed), query=None, context=handle.id)
        scores = double.score_many([named])[0].scores
        assert np.abs(np.array(scores) - np.array(single.score_many([request(seed)])[0].scores)).max() <= 1e-5
    double.release(handles[1])
    with pytest.raises(ContextNotFound):
        double.score_many([replace(request(22), query=None, context=handles[1].id)])
    assert double.engine.contexts.get(handles[0].id)[0] == handles[0]


def test_a_large_request_is_divided_between_replicas(single: Scorer, double: Scorer) -> None:
    large = replace(request(31, items=40), continuations=[[5, 6], [7]])
    before = steps(double)
    ours, theirs = (scorer.score_many([large])[0] for scorer in (double, single))
    assert "divided between 2 replicas" in ours.reason
    assert all(now > then for now, then in zip(steps(double), before, strict=True))
    assert np.abs(np.array(ours.scores) - np.array(theirs.scores)).max() <= 1e-5
    assert ours.usage.prompt_tokens == theirs.usage.prompt_tokens
    logprobs = [[c.logprob for row in found.continuations or [] for c in row] for found in (ours, theirs)]
    assert len(logprobs[0]) == 80
    assert np.abs(np.array(logprobs[0]) - np.array(logprobs[1])).max() <= 1e-4


def test_a_mistake_in_one_request_lets_none_of_them_run(double: Scorer) -> None:
    before = steps(double)
    with pytest.raises(RequestError):
        double.score_many([request(41), replace(request(42), label_token_ids=[10**9])])
    assert steps(double) == before


def test_a_submitted_request_can_be_cancelled(double: Scorer) -> None:
    future = double.submit(request(51))
    assert len(future.result().scores) == 4
    cancelled = double.submit(request(52))
    cancelled.cancel()
    assert double.score_many([request(53)])[0].scores, "and the others go on"


def test_pages_come_back_in_every_replica(double: Scorer) -> None:
    free = [engine.pages.free for engine in double.engines]
    handle = double.prefill(tokens(20, 61))
    double.score_many([request(seed, items=20) for seed in range(61, 67)])
    double.score_many([replace(request(61), query=None, context=handle.id)])
    double.engine.contexts.clear()
    assert [engine.pages.free for engine in double.engines] == free


def test_every_replica_has_its_programs_after_compile(double: Scorer) -> None:
    programs = double.compile()
    assert [program.name for program in programs] == [str(p) for p in double.engine.runner.builder.programs()]
    before = double.engine.runner.compilations
    double.score_many([replace(request(seed), continuations=[[5, 6]]) for seed in range(71, 77)])
    assert double.engine.runner.compilations == before


def test_the_arrangement_is_told_with_its_reason(single: Scorer, double: Scorer) -> None:
    from onepass.server.engines.details import details_of

    assert isinstance(double.engine, Replicas)
    told = details_of(double)["details"]
    assert told["parallel"] == {"tp": 2, "dp": 2, "reason": "both were asked for"}
    assert (told["engine"]["tp"], told["engine"]["dp"]) == (2, 2)
    told = details_of(single)["details"]["parallel"]
    assert (told["tp"], told["dp"]) == (1, 1)
    assert "fits one device" in told["reason"]


def test_more_devices_than_there_are_is_an_error_at_once(folder: Path) -> None:
    with pytest.raises(ConfigError, match="tp=4 and dp=4 need 16 devices; there are 8"):
        Scorer.load(str(folder), tp=4, dp=4, **OPTIONS)
