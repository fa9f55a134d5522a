"""One path of the API as an ASGI app: the method, the body, the work while someone waits for it, the answer.

What the work is, is `handlers`; what is raised here becomes an answer in `middleware`.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from onepass.server.engines.service import Service
from onepass.server.handlers import NDJSON, Ask, answer_score, score_lines, wants_lines
from onepass.server.http.body import read_object
from onepass.server.http.body_limits import BodyBudget, Limits
from onepass.server.http.disconnect import while_wanted
from onepass.server.http.errors import ClientGone, HttpError, error_response
from onepass.server.http.middleware import Json, report
from onepass.server.http.request_context import exchange_of
from onepass.server.routes.operation import Operation


@dataclass(frozen=True)
class Endpoint:
    """A path with one operation for each of its methods."""

    path: str
    methods: Mapping[str, Operation]
    service: Service
    limits: Limits
    room: BodyBudget
    logger: logging.Logger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        exchange.route = self.path
        if scope["method"] == "OPTIONS":
            await _options(self.methods)(scope, receive, send)
            return
        operation = self.methods.get(scope["method"])
        if operation is None:
            raise not_allowed(self.methods)
        with self.room.share() as take:
            await self.answer(operation, scope, receive, send, take)

    async def answer(
        self, operation: Operation, scope: Scope, receive: Receive, send: Send, take: Callable[[int], None]
    ) -> None:
        exchange, headers = exchange_of(scope), Headers(scope=scope)
        body: dict[str, Any] = {}
        if operation.bodies:
            self.service.check_room(exchange.caller)
            body = await read_object(headers, receive, self.limits, self.room, take)
        ask = Ask(self.service, exchange, headers, scope["path_params"], body)
        if operation.run is answer_score and wants_lines(ask):
            await self.send_lines(ask, receive, send)
            return
        answer: Any = await while_wanted(receive, exchange.caller.deadline, operation.run(ask))
        await Json(answer)(scope, receive, send)

    async def send_lines(self, ask: Ask, receive: Receive, send: Send) -> None:
        """An error before the first line is an answer like any other; after it, one more line."""
        started = False

        async def work() -> None:
            nonlocal started
            async with aclosing(score_lines(ask)) as lines:
                async for line in lines:
                    if not started:
                        started = True
                        await send(_start())
                    await send(_line(line))

        try:
            await while_wanted(receive, ask.exchange.caller.deadline, work())
        except ClientGone:
            raise
        except Exception as error:
            if not started:
                raise
            fault = error_response(error, ask.exchange.request_id)
            report(self.logger, ask.exchange, fault, error)
            await send(_line(fault.body()))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@dataclass(frozen=True)
class PageEndpoint:
    """A path that is only read."""

    path: str
    answer: Callable[[Request], Response]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange_of(scope).route = self.path
        if scope["method"] == "OPTIONS":
            await _options(("GET", "HEAD"))(scope, receive, send)
            return
        if scope["method"] not in ("GET", "HEAD"):
            raise not_allowed(("GET", "HEAD"))
        await self.answer(Request(scope, receive))(scope, receive, send)


def not_allowed(methods: "Mapping[str, Operation] | tuple[str, ...]") -> HttpError:
    allowed = ", ".join(methods)
    return HttpError(405, "method_not_allowed", f"this path takes {allowed}", {"Allow": allowed})


def _options(methods: "Mapping[str, Operation] | tuple[str, ...]") -> Response:
    return Response(status_code=204, headers={"Allow": ", ".join([*methods, "OPTIONS"])})


def _start() -> dict[str, object]:
    headers = [(b"content-type", NDJSON.encode()), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def _line(value: object) -> dict[str, object]:
    return {"type": "http.response.body", "body": orjson.dumps(value) + b"\n", "more_body": True}
