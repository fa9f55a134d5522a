"""Rows and evaluations through a server get what the library gives."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bulk.served import served
from onepass.bulk.row_fields import RowFields
from onepass.bulk.workers import LocalWorker, RemoteWorker
from onepass.client.blocking import Client
from onepass.errors import RequestError
from onepass.integrations.evaluation_backend import Backend, LocalBackend, RemoteBackend
from onepass.integrations.loglikelihood import Pair, loglikelihoods
from onepass.scorer import Scorer

ROWS = [
    {"query": "Is it even?", "items": [" two", " three"], "labels": [" yes", " no"]},
    {"query": "", "items": [" two"], "labels": [" yes", " no"]},
    {"query": "Is it even?", "items": [" four"], "continuations": [" yes it is", " no"]},
]


@pytest.fixture(scope="module")
def scorer(checkpoint: Callable[[str], Path]) -> Iterator[Scorer]:
    options = {"dtype": "float32", "keep_programs": False, "max_batch_tokens": 256, "cache_bytes": 1 << 24}
    with Scorer.load(str(checkpoint("qwen3")), **options) as scorer:  # type: ignore[arg-type]
        yield scorer


@pytest.fixture(scope="module")
def url(scorer: Scorer) -> Iterator[str]:
    with served(scorer) as url:
        yield url


def test_rows_of_a_server_are_those_of_the_library(scorer: Scorer, url: str) -> None:
    fields = [RowFields("score").of(row, False) for row in ROWS]
    with Client(url) as client:
        remote = RemoteWorker(client, "score").run(fields)
    local = LocalWorker(scorer, "score").run(fields)
    for there, here in zip(remote, local, strict=True):
        if isinstance(here.cells, RequestError):
            assert isinstance(there.cells, RequestError)
            assert there.cells.code == here.cells.code == "empty_query"
            continue
        assert isinstance(there.cells, dict)
        assert there.cells.keys() == here.cells.keys()
        assert there.cells["scores"] == [pytest.approx(row, abs=1e-5) for row in here.cells["scores"]]
    last = remote[2].cells
    assert isinstance(last, dict)
    assert len(last["logprobs"][0]) == 2
    assert json.dumps(last)


def test_an_evaluation_of_a_server_is_that_of_the_library(scorer: Scorer, url: str) -> None:
    here = LocalBackend(scorer.model.name, scorer, scorer.model.config.max_position, scorer.model.chat)
    with closing(RemoteBackend.connect(url + "/v1", None)) as there:
        compare(there, here)


def compare(there: Backend, here: Backend) -> None:
    assert (there.name, there.max_length) == (here.name, here.max_length)
    texts = ["The capital of France", " is Paris"]
    for special in (True, False):
        assert there.encode(texts, special) == here.encode(texts, special)
    context, continuation = (tuple(ids) for ids in here.encode(texts, False))
    pairs = [Pair(context, continuation), Pair(context, continuation[:1])]
    remote, local = (dict(loglikelihoods(backend.scorer, pairs)) for backend in (there, here))
    for number in remote:
        assert remote[number].logprob == pytest.approx(local[number].logprob, abs=1e-4)
        assert remote[number].is_greedy == local[number].is_greedy
