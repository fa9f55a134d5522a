"""Candidates reranked by a model: one scoring request per query, several in flight, results in the queries' order.

The model is a scorer in this process or a server; both give a `submit`. Documents are sorted by what the model's method
reads before any activation (log-odds, log P), which does not saturate.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from onepass.api import Mode, ScoreRequest, ScoreResult
from onepass.client.blocking import Client
from onepass.client.calls import ranker_of
from onepass.engine.ranking import AskedMethod, RankReading, RankRequest, rank_scores, score_request
from onepass.errors import RequestError, TooLong
from onepass.evaluate.trec_files import ScoredDocument, ranked
from onepass.loading.rerankers.templates import Ranker
from onepass.scorer import Scorer

DOCUMENTS_IN_FLIGHT = 1024
QUERIES_IN_FLIGHT = 64


@dataclass(frozen=True)
class Candidates:
    """A query with the documents that are to be ranked, as ids and texts."""

    query_id: str
    query: str
    documents: dict[str, str]


@dataclass(frozen=True)
class RankOptions:
    method: AskedMethod = "auto"
    instruction: str | None = None
    mode: Mode = "auto"


@dataclass(frozen=True)
class _Pending:
    query_id: str
    documents: list[str]
    reading: RankReading
    future: "Future[ScoreResult]"


class Reranker:
    """`name` is the system's, in reports and run files."""

    def __init__(
        self,
        name: str,
        submit: "Callable[[ScoreRequest], Future[ScoreResult]]",
        ranker: Ranker,
        options: RankOptions | None = None,
    ) -> None:
        self.name = name
        self._submit, self._ranker, self._options = submit, ranker, options or RankOptions()

    @classmethod
    def of_scorer(cls, scorer: Scorer, options: RankOptions | None = None, name: str | None = None) -> "Reranker":
        return cls(name or scorer.model.name, scorer.submit, scorer.model.ranker, options)

    @classmethod
    def of_client(cls, client: Client, options: RankOptions | None = None, name: str | None = None) -> "Reranker":
        info = client.info()
        return cls(name or str(info["model"]), client.submit, ranker_of(info), options)

    def rerank(self, tasks: Iterable[Candidates]) -> Iterator[tuple[str, list[ScoredDocument]]]:
        """Query ids with their documents, best first. What is in flight is cancelled when the caller stops."""
        waiting: deque[_Pending] = deque()
        try:
            for candidates in tasks:
                waiting.append(self._started(candidates))
                while _is_full(waiting):
                    yield _finished(waiting)
            while waiting:
                yield _finished(waiting)
        finally:
            for pending in waiting:
                pending.future.cancel()

    def _started(self, candidates: Candidates) -> _Pending:
        """A request that is refused fails when it is its turn, so that the queries before it are finished."""
        call = RankRequest(
            query=candidates.query,
            items=list(candidates.documents.values()),
            method=self._options.method,
            instruction=self._options.instruction,
            mode=self._options.mode,
            label_mass=False,
        )
        future: Future[ScoreResult] = Future()
        reading = RankReading("label")
        try:
            request, reading = score_request(self._ranker, call)
            if call.items:  # a query without candidates needs no model
                future = self._submit(request)
        except RequestError as error:
            future.set_exception(error)
        return _Pending(candidates.query_id, list(candidates.documents), reading, future)


def _is_full(waiting: "deque[_Pending]") -> bool:
    documents = sum(len(pending.documents) for pending in waiting)
    return len(waiting) >= QUERIES_IN_FLIGHT or documents >= DOCUMENTS_IN_FLIGHT


def _finished(waiting: "deque[_Pending]") -> tuple[str, list[ScoredDocument]]:
    first = waiting[0]
    scores: list[float] = []
    if first.documents:
        with _named(first.query_id):
            scores = rank_scores(first.reading, first.future.result())
    waiting.popleft()
    return first.query_id, ranked(dict(zip(first.documents, scores, strict=True)))


@contextmanager
def _named(query_id: str) -> Iterator[None]:
    """Names the query in a RequestError that the block raises, and the cure where a document is too long."""
    try:
        yield
    except TooLong as error:
        raise TooLong(f"query {query_id!r}: {error}; --max-document-words cuts documents") from error
    except RequestError as error:
        raise RequestError(error.code, f"query {query_id!r}: {error}", error.param) from error
