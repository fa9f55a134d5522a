"""Who runs a window of rows: a model in this process, or a server.

In this process a window's requests are admitted at once to an engine that keeps no context of earlier windows, so that
a window's steps, and with them every bit of its results, are the same however often the run was stopped before. A row
that is wrong gets an error; the others of its window are scored without it.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from onepass.api import ScoreRequest, ScoreResult
from onepass.bulk.row_fields import Kind
from onepass.bulk.row_request import Cells, RequestBuilder, RowRequest, join, score_cells, separate
from onepass.client.blocking import Client
from onepass.decisions.decider import Decider
from onepass.decisions.question_format import candidates_of, questions_of
from onepass.decisions.questions import DecisionRequest
from onepass.engine.ranking import RankRequest, one_of, ranking_of, score_request
from onepass.errors import RequestError
from onepass.loading.rerankers.templates import Ranker
from onepass.scorer import Scorer

Fields = Mapping[str, Any] | RequestError  # a row's, or why it has none
CALLS = 32  # to a server at a time


@dataclass(frozen=True)
class Answer:
    """A row's result as columns, or its error; `tokens` of its request."""

    cells: Cells | RequestError
    tokens: int = 0


class Worker(Protocol):
    def run(self, rows: Sequence[Fields]) -> list[Answer]: ...


class LocalWorker:
    def __init__(self, scorer: Scorer, kind: Kind) -> None:
        self._scorer = scorer
        self._builder = builder_of(kind, scorer.model.ranker, scorer.decider if kind == "decide" else None)

    def run(self, rows: Sequence[Fields]) -> list[Answer]:
        answers: list[Answer | None] = [None] * len(rows)
        numbers, requests = [], []
        for number, fields in enumerate(rows):
            try:
                requests.append(self._builder.build(_sound(fields)))
                numbers.append(number)
            except RequestError as error:
                answers[number] = _failed(error)
        self._scorer.engine.contexts.clear()
        for number, request, result in zip(numbers, requests, self._results(requests), strict=True):
            answers[number] = _answer(request, result)
        return [answer for answer in answers if answer is not None]

    def _results(self, requests: Sequence[RowRequest]) -> list[ScoreResult | RequestError]:
        joined = join(requests)
        scored = self._scored([one.request for one in joined])
        out: list[ScoreResult | RequestError | None] = [None] * len(requests)
        for one, result in zip(joined, scored, strict=True):
            parts: Sequence[ScoreResult | RequestError]
            if not isinstance(result, RequestError):
                parts = separate(one, result)
            elif len(one.rows) == 1:
                parts = [result]
            else:  # one row's mistake is not the others'
                parts = self._scored([requests[number].request for number in one.rows])
            for number, part in zip(one.rows, parts, strict=True):
                out[number] = part
        return [result for result in out if result is not None]

    def _scored(self, requests: list[ScoreRequest]) -> list[ScoreResult | RequestError]:
        """All at once; where one of them is wrong, in halves until it is alone."""
        try:
            return list(self._scorer.score_many(requests)) if requests else []
        except RequestError as error:
            if len(requests) == 1:
                return [_detached(error)]
        middle = len(requests) // 2
        return self._scored(requests[:middle]) + self._scored(requests[middle:])


class RemoteWorker:
    """Rows as calls to a server, in threads; the server joins what runs together."""

    def __init__(self, client: Client, kind: Kind) -> None:
        self._client, self._kind = client, kind
        self._threads = ThreadPoolExecutor(CALLS, "onepass-run")

    def run(self, rows: Sequence[Fields]) -> list[Answer]:
        return list(self._threads.map(self._ask, rows))

    def _ask(self, fields: Fields) -> Answer:
        try:
            given = dict(_sound(fields))
            if self._kind == "rank":
                ranking = self._client.rank(given.pop("query", None), **given)
                return Answer(ranking_cells(ranking), ranking.result.usage.prompt_tokens)
            if self._kind == "decide":
                decided = self._client.decide(given.pop("state", None), given.pop("questions", ()), **given)
                return Answer({"answers": decided.to_dict()["answers"]}, decided.usage.prompt_tokens)
            result = self._client.score(**given)
            return Answer(score_cells(result), result.usage.prompt_tokens)
        except RequestError as error:
            return _failed(error)


def builder_of(kind: Kind, ranker: Ranker, decider: Decider | None) -> RequestBuilder:
    def rank(fields: Mapping[str, Any]) -> RowRequest:
        given = dict(fields)
        items = one_of(given.pop("items", None), given.pop("documents", None))
        call = RankRequest(query=given.pop("query", None), items=items, **given)
        request, reading = score_request(ranker, call)
        return RowRequest(request, lambda result: ranking_cells(ranking_of(reading, call, result)))

    def decide(fields: Mapping[str, Any]) -> RowRequest:
        assert decider is not None
        given = dict(fields)
        candidates = given.pop("candidates", None)
        request = DecisionRequest(
            state=given.pop("state", None),
            questions=questions_of(given.pop("questions", ())),
            candidates=candidates_of(candidates),
            **given,
        )
        plan = decider.plan(request)
        return RowRequest(plan.score_request, lambda result: {"answers": plan.result(result).to_dict()["answers"]})

    return RequestBuilder(kind, rank, decide)


def ranking_cells(ranking: Any) -> Cells:
    return {
        "ranking": [{"index": item.index, "score": item.score} for item in ranking],
        "method": ranking.method,
    }


def _sound(fields: Fields) -> Mapping[str, Any]:
    if isinstance(fields, RequestError):
        raise fields
    return fields


def _answer(request: RowRequest, result: ScoreResult | RequestError) -> Answer:
    if isinstance(result, RequestError):
        return _failed(result)
    try:
        return Answer(request.cells(result), result.usage.prompt_tokens)
    except RequestError as error:
        return _failed(error)


def _failed(error: RequestError) -> Answer:
    return Answer(_detached(error))


def _detached(error: RequestError) -> RequestError:
    """Without its traceback, whose frames hold the window's rows and answers, this error among them: such a cycle would
    keep the whole window in memory until the garbage collector's next full pass."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error
