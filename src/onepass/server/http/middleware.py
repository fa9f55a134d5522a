"""What surrounds every request: an id, the key check, errors as answers, and at the end a log line and the counts.

Two layers, since the headers for browsers (CORS) belong between them: `AccessLogMiddleware` outside,
`ErrorMiddleware` inside.
"""

import logging
import re
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onepass.server.http.access_log import log_exchange
from onepass.server.http.auth import Keys
from onepass.server.http.errors import ClientGone, ErrorResponse, error_response
from onepass.server.http.framing import check_framing, check_head_size, check_version
from onepass.server.http.request_context import RequestContext, caller_of, exchange_of, request_id_of
from onepass.server.http.tracing import Spans
from onepass.server.metrics import Metrics

ABSOLUTE = re.compile(r"^https?://[^/?]*", re.IGNORECASE)  # a target as clients write it to a proxy: RFC 9112, 3.2.2
METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
CLIENT_GONE = 499  # never sent: how nginx writes down that nobody was there to answer


class Json(Response):
    """orjson writes NaN and infinity as null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        try:
            return orjson.dumps(content)
        except orjson.JSONEncodeError as error:
            if "Recursion" not in str(error):
                raise
            # A document that is given back was read at a depth at which it cannot be written.
            raise RecursionError("the answer is nested too deeply") from error


def fault_response(fault: ErrorResponse, exchange: RequestContext) -> Response:
    body = fault.body() if exchange.error_body is None else exchange.error_body(fault)
    return Json(body, fault.status, headers=dict(fault.headers))


class AccessLogMiddleware:
    """Gives the request its id and keeps the books."""

    def __init__(self, app: ASGIApp, metrics: Metrics, logger: logging.Logger, spans: Spans | None) -> None:
        self.app = app
        self.metrics = metrics
        self.logger = logger
        self.spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        exchange = RequestContext(request_id_of(headers), scope["method"])
        path = ABSOLUTE.sub("", scope["path"]).rstrip("/") or "/"
        scope = {**scope, "path": path, "onepass.exchange": exchange}

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = exchange.status or message["status"]
                message["headers"] = _with_headers(message["headers"], exchange)
            await send(message)

        with self.metrics.in_flight.track_inprogress():
            try:
                with self.spans.request(exchange, headers) if self.spans else nullcontext():
                    await self.app(scope, receive, send_with_id)
            finally:
                exchange.status = exchange.status or CLIENT_GONE
                self.metrics.observe(exchange)
                log_exchange(self.logger, exchange)


def _with_headers(headers: Iterable[tuple[bytes, bytes]], exchange: RequestContext) -> list[tuple[bytes, bytes]]:
    """The answer's headers with the request's id and those of its dialect in the place of any of the same name."""
    own = {"x-request-id": exchange.request_id, **exchange.headers}
    added = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in own.items()]
    names = {name for name, _ in added}
    return [*(field for field in headers if field[0] not in names), *added]


class ErrorMiddleware:
    """Checks the key, and turns whatever is raised into the one error body."""

    def __init__(self, app: ASGIApp, keys: Keys, logger: logging.Logger) -> None:
        self.app = app
        self.keys = keys
        self.logger = logger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = exchange_of(scope)
        started = False

        async def send_noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        async def receive_sound() -> Message:
            message = await receive()
            check_parsed(scope)
            return message

        try:
            headers = Headers(scope=scope)
            check_parsed(scope)
            check_version(scope.get("http_version", "1.1"))
            check_head_size(scope)
            check_framing(scope.get("http_version", "1.1"), headers)
            key = self.keys.name_of(scope["path"], headers)
            exchange.caller = caller_of(key, exchange.request_id, headers, exchange.began)
            if scope["method"] == "OPTIONS" and scope["path"] == "*":
                await Response(status_code=204, headers={"Allow": ", ".join(METHODS)})(scope, receive, send)
                return
            await self.app(scope, receive_sound, send_noting)
        except ClientGone:
            exchange.status = CLIENT_GONE
        except Exception as error:
            fault = error_response(error, exchange.request_id)
            report(self.logger, exchange, fault, error)
            if started:  # half an answer is out: all that is left is to break the connection
                raise
            await fault_response(fault, exchange)(scope, receive, send)


def check_parsed(scope: Scope) -> None:
    """Raises what the parser found wrong with the request, also if it found it in the body."""
    refused = scope.get("state", {}).get("refused")
    if refused is not None:
        raise refused


def report(logger: logging.Logger, exchange: RequestContext, fault: ErrorResponse, error: Exception) -> None:
    """An error that is answered: its code for the log line, and for our own failures the traceback."""
    exchange.code = fault.code
    if fault.status == 500:
        fields = {"request_id": exchange.request_id, "route": exchange.route}
        logger.error("internal error", exc_info=error, extra={"fields": fields})
