"""Fixtures of the server's tests: the application over a tiny model in this process, and clients that ask it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from onepass.loading.rerankers.templates import Ranker
from onepass.scorer import Scorer
from onepass.server.app import build_app
from server.in_process import InProcess


@pytest.fixture(scope="session")
def tiny_scorer(checkpoint: Callable[[str], Path]) -> Iterator[Scorer]:
    options = {"dtype": "float32", "keep_programs": False, "max_batch_tokens": 256, "cache_bytes": 1 << 24}
    with Scorer.load(str(checkpoint("qwen3")), **options) as scorer:
        yield scorer


@pytest.fixture(scope="session")
def _by_likelihood(tiny_scorer: Scorer) -> Iterator[tuple[InProcess, TestClient]]:
    yield from _serving(InProcess(tiny_scorer))


@pytest.fixture(scope="session")
def _by_label(tiny_scorer: Scorer) -> Iterator[tuple[InProcess, TestClient]]:
    yield from _serving(InProcess(tiny_scorer, Ranker("label")))


def _serving(service: InProcess) -> Iterator[tuple[InProcess, TestClient]]:
    with TestClient(build_app(service), raise_server_exceptions=False) as client:
        yield service, client


@pytest.fixture
def service(_by_likelihood: tuple[InProcess, TestClient]) -> Iterator[InProcess]:
    """What `client` asks, as new."""
    yield _by_likelihood[0]
    _by_likelihood[0].reset()


@pytest.fixture
def client(_by_likelihood: tuple[InProcess, TestClient], service: InProcess) -> TestClient:
    """A model that ranks by likelihood."""
    return _by_likelihood[1]


@pytest.fixture
def label_client(_by_label: tuple[InProcess, TestClient]) -> Iterator[TestClient]:
    """The same model, ranking by yes against no."""
    yield _by_label[1]
    _by_label[0].reset()


@pytest.fixture
def client_of(service: InProcess) -> Iterator[Callable[..., TestClient]]:
    """`client_of(keys=…, limits=…)`: a client of an application with these options over the same service."""
    opened: list[TestClient] = []

    def make(**options: Any) -> TestClient:
        opened.append(TestClient(build_app(service, **options), raise_server_exceptions=False))
        return opened[-1]

    yield make
    for one in opened:
        one.close()
