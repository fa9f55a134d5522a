"""The one table from an exception to an HTTP answer, and the one error body that every client reads.

| exception          | status | type                     |
|--------------------|--------|--------------------------|
| RequestError       | 400    | BadRequestError          |
| ContextNotFound    | 404    | NotFoundError            |
| ModelNotFound      | 404    | NotFoundError            |
| Overloaded         | 429    | RateLimitError           |
| EngineUnavailable  | 503    | ServiceUnavailableError  |
| DeadlineExceeded   | 504    | GatewayTimeoutError      |
| HttpError          | its own: 401, 404, 405, 408, 413, 415, 431, 501, 505 |
| anything else      | 500    | InternalServerError, without a word of why        |

Raising the errors is everyone's work; sending and logging them is `middleware`'s.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException

from onepass.errors import (
    ContextNotFound,
    DeadlineExceeded,
    EngineUnavailable,
    ModelNotFound,
    OnepassError,
    Overloaded,
    RequestError,
)

TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "PayloadTooLargeError",
    415: "UnsupportedMediaTypeError",
    429: "RateLimitError",
    431: "HeadersTooLargeError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
    505: "HttpVersionNotSupportedError",
}
STATUS: dict[type[Exception], int] = {
    RequestError: 400,
    ContextNotFound: 404,
    ModelNotFound: 404,
    Overloaded: 429,
    EngineUnavailable: 503,
    DeadlineExceeded: 504,
}
LONGEST_MESSAGE = 2000  # an error may quote what came, and what came may be megabytes


class HttpError(OnepassError):
    """What HTTP itself refuses, before anything is understood of the request."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        headers: Mapping[str, str] | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})
        self.param = param


class ClientGone(Exception):
    """The client closed the connection: there is nobody left to answer, and nothing is wrong."""


@dataclass(frozen=True)
class ErrorResponse:
    """An error as it is answered."""

    status: int
    code: str
    message: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def type(self) -> str:
        return TYPES.get(self.status, "InternalServerError" if self.status >= 500 else "BadRequestError")

    @property
    def shown(self) -> str:
        """The message, cut if it quotes too much."""
        return self.message if len(self.message) <= LONGEST_MESSAGE else self.message[:LONGEST_MESSAGE] + "…"

    def body(self) -> dict[str, Any]:
        """`error` is read by the OpenAI, Cohere and SGLang clients, the flat members by vLLM's, `detail` by Jina's
        and Voyage's."""
        message = self.shown
        error = {"message": message, "type": self.type, "param": self.param, "code": self.code}
        flat = {"message": message, "type": self.type, "param": self.param, "code": self.status, "detail": message}
        return {"error": error, "object": "error", **flat}


def error_response(error: Exception, request_id: str) -> ErrorResponse:
    if isinstance(error, HttpError):
        return ErrorResponse(error.status, error.code, str(error), error.param, error.headers)
    if isinstance(error, HTTPException):
        return _of_routing(error)
    if isinstance(error, RecursionError):  # in writing what came: nothing of ours is nested so deeply
        return ErrorResponse(400, "invalid_json", "the body must be JSON of moderate depth; it is nested too deeply")
    status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)
    if status == 500:
        return ErrorResponse(500, "internal_error", f"an error inside the server; the request's id is {request_id}")
    retry_after = getattr(error, "retry_after", None)
    headers = {} if retry_after is None else {"Retry-After": str(max(1, math.ceil(retry_after)))}
    return ErrorResponse(status, getattr(error, "code"), str(error), getattr(error, "param", None), headers)  # noqa: B009


def _of_routing(error: HTTPException) -> ErrorResponse:
    """What Starlette's router raises: no such path, or a path without that method."""
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return ErrorResponse(405, "method_not_allowed", f"this path takes {allowed}", headers=dict(error.headers or {}))
    if error.status_code == 404:
        return ErrorResponse(404, "not_found", "there is no such path; GET /docs lists what there is")
    return ErrorResponse(error.status_code, "refused", error.detail, headers=dict(error.headers or {}))
