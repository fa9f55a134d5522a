"""`Client`: the methods of `Scorer`, over HTTP. Thread-safe; connections are kept and used again.

client = Client("http://localhost:8000")
client.score(query="…", items=["…", "…"], labels=[" yes", " no"])

Requests and answers are `calls`, connections `transport`; the asynchronous twin is `aio`.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx2

from onepass.api import (
    ChatOptions,
    ContextHandle,
    Continuations,
    Mode,
    Ranking,
    ScoreRequest,
    ScoreResult,
    Text,
    context_id,
)
from onepass.client.calls import (
    Call,
    Retries,
    health_call,
    info_call,
    prefill_call,
    ranker_of,
    release_call,
    score_call,
    unreachable,
)
from onepass.client.decision_calls import decide_call
from onepass.client.transport import CONNECTIONS, answer_of, connections
from onepass.decisions.question_format import candidates_of, questions_of
from onepass.decisions.questions import DecisionRequest
from onepass.decisions.result import DecisionResult
from onepass.engine.ranking import AskedMethod, RankRequest, one_of, ranking_of, score_request
from onepass.loading.rerankers.templates import Ranker


class Client:
    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        model: str | None = None,
        timeout: float = 600.0,
        retries: Retries | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._model = model
        self._retries = retries or Retries()
        self._http = httpx2.Client(**connections(self.url, api_key, timeout))
        self._threads = ThreadPoolExecutor(CONNECTIONS, "onepass-client")
        self._ranker: Ranker | None = None

    def score(
        self,
        query: Text | None = None,
        items: Text | Sequence[Text] = (),
        labels: Sequence[str] | None = None,
        *,
        label_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        continuations: Continuations | None = None,
        apply_softmax: bool = False,
        temperature: float = 1.0,
        item_first: bool = False,
        delimiter_token_id: int | None = None,
        mode: Mode = "auto",
        context: ContextHandle | str | None = None,
        label_mass: bool = True,
        messages: Sequence[Mapping[str, Any]] | None = None,
        chat: ChatOptions | None = None,
        add_special_tokens: bool = True,
        return_prompt: bool = False,
        return_trace: bool = False,
    ) -> ScoreResult:
        """As `Scorer.score`; `context` may be what `prefill` returned."""
        request = ScoreRequest(
            query=query,
            items=items,
            labels=labels,
            label_token_ids=label_token_ids,
            continuations=continuations,
            apply_softmax=apply_softmax,
            temperature=temperature,
            item_first=item_first,
            delimiter_token_id=delimiter_token_id,
            mode=mode,
            context=context_id(context),
            label_mass=label_mass,
            messages=messages,
            chat=chat,
            add_special_tokens=add_special_tokens,
            return_prompt=return_prompt,
            return_trace=return_trace,
        )
        return self._ask(score_call(request, self._model))

    def score_many(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Several requests at once; the server lets them share the device's steps."""
        return [future.result() for future in [self.submit(request) for request in requests]]

    def submit(self, request: ScoreRequest) -> "Future[ScoreResult]":
        return self._threads.submit(self._ask, score_call(request, self._model))

    def rank(
        self,
        query: Text | None = None,
        items: Sequence[Text] | None = None,
        *,
        documents: Sequence[Text] | None = None,
        method: AskedMethod = "auto",
        top: int | None = None,
        instruction: str | None = None,
        return_documents: bool = True,
        labels: Sequence[str] | None = None,
        label_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        apply_softmax: bool | None = None,
        temperature: float = 1.0,
        item_first: bool = False,
        delimiter_token_id: int | None = None,
        mode: Mode = "auto",
        label_mass: bool = True,
        messages: Sequence[Mapping[str, Any]] | None = None,
        chat: ChatOptions | None = None,
        return_prompt: bool = False,
    ) -> Ranking:
        """As `Scorer.rank`."""
        if self._ranker is None:
            self._ranker = ranker_of(self.info())
        call = RankRequest(
            query=query,
            items=one_of(items, documents),
            method=method,
            top=top,
            instruction=instruction,
            return_documents=return_documents,
            labels=labels,
            label_token_ids=label_token_ids,
            apply_softmax=apply_softmax,
            temperature=temperature,
            item_first=item_first,
            delimiter_token_id=delimiter_token_id,
            mode=mode,
            label_mass=label_mass,
            messages=messages,
            chat=chat,
            return_prompt=return_prompt,
        )
        request, by = score_request(self._ranker, call)
        return ranking_of(by, call, self._ask(score_call(request, self._model)))

    def decide(
        self,
        state: Any,
        questions: Mapping[str, Any] | Sequence[Any],
        *,
        candidates: Sequence[str] | None = None,
        permutations: int = 1,
        calibrated: bool = True,
        mode: Mode = "auto",
    ) -> DecisionResult:
        """As `Scorer.decide`."""
        request = DecisionRequest(
            state=state,
            questions=questions_of(questions),
            candidates=candidates_of(candidates),
            permutations=permutations,
            calibrated=calibrated,
            mode=mode,
        )
        return self._ask(decide_call(request, self._model))

    def prefill(
        self,
        query: Text | None = None,
        *,
        ttl_seconds: float = 300.0,
        pin: bool = False,
        messages: Sequence[Mapping[str, Any]] | None = None,
        chat: ChatOptions | None = None,
    ) -> ContextHandle:
        """Compute a query's context now and keep it; `score(context=...)` uses it."""
        return self._ask(prefill_call(query, ttl_seconds, pin, self._model, messages, chat))

    def release(self, context: ContextHandle | str) -> None:
        self._ask(release_call(context))

    def info(self) -> dict[str, Any]:
        return self._ask(info_call())

    def health(self) -> dict[str, Any]:
        """What /health says; raises EngineUnavailable while no request would be served."""
        return self._ask(health_call(), Retries(tries=1))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._http.close()

    def __repr__(self) -> str:
        return f"<Client {self.url}>"

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask[T](self, call: Call[T], retries: Retries | None = None) -> T:
        retries, tried = retries or self._retries, 0
        while True:
            tried += 1
            outcome = self._once(call)
            if not isinstance(outcome, Exception):
                return outcome
            wait = retries.wait(outcome, tried)
            if wait is None:
                raise outcome
            time.sleep(wait)

    def _once[T](self, call: Call[T]) -> T | Exception:
        try:
            response = self._http.request(call.method, call.path, json=call.body)
        except httpx2.TransportError as error:
            return unreachable(self.url, error)
        return answer_of(call, response)
