"""`AsyncClient`: `Client` for asyncio. The same methods, awaited.

Requests and answers are `calls`.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx2

from onepass.api import Ranking, ScoreRequest, ScoreResult, Text
from onepass.client.blocking import answer_of, connections
from onepass.client.calls import (
    Call,
    RemoteContext,
    Retries,
    health_call,
    info_call,
    prefill_call,
    ranker_of,
    release_call,
    score_call,
    unreachable,
)
from onepass.engine.ranking import AskedMethod, ask_ranking, ranking_of
from onepass.engine.request import request_of
from onepass.loading.templates import Ranker


class AsyncClient:
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
        self._http = httpx2.AsyncClient(**connections(self.url, api_key, timeout))
        self._ranker: Ranker | None = None

    async def score(self, query: Text | None = None, items: Text | Sequence[Text] = (), **fields: Any) -> ScoreResult:
        return await self._ask(score_call(request_of(query=query, items=items, **fields), self._model))

    async def score_many(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        return list(await asyncio.gather(*(self._ask(score_call(request, self._model)) for request in requests)))

    async def rank(
        self, query: Text, items: Sequence[Text], *, method: AskedMethod = "auto", top: int | None = None, **fields: Any
    ) -> Ranking:
        if self._ranker is None:
            self._ranker = ranker_of(await self.info())
        request, by = ask_ranking(self._ranker, method, query, items, top, fields)
        return ranking_of(by, items, await self._ask(score_call(request, self._model)), top)

    async def prefill(self, query: Text, *, ttl_seconds: float = 300.0, pin: bool = False) -> RemoteContext:
        return await self._ask(prefill_call(query, ttl_seconds, pin, self._model))

    async def release(self, context: RemoteContext | str) -> None:
        await self._ask(release_call(context))

    async def info(self) -> dict[str, Any]:
        return await self._ask(info_call())

    async def health(self) -> dict[str, Any]:
        return await self._ask(health_call(), Retries(tries=1))

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask[T](self, call: Call[T], retries: Retries | None = None) -> T:
        retries, tried = retries or self._retries, 0
        while True:
            tried += 1
            outcome = await self._once(call)
            if not isinstance(outcome, Exception):
                return outcome
            wait = retries.wait(outcome, tried)
            if wait is None:
                raise outcome
            await asyncio.sleep(wait)

    async def _once[T](self, call: Call[T]) -> T | Exception:
        try:
            response = await self._http.request(call.method, call.path, json=call.body)
        except httpx2.TransportError as error:
            return unreachable(self.url, error)
        return answer_of(call, response)
