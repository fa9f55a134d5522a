"""One request and its answer, from arrival to the log line: its id, its caller, and what came of it.

Filled in as the request passes through; read at the end by `logs` and `metrics`. Never holds a word of its text.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from onepass.api import ScoreResult
from onepass.errors import RequestError
from onepass.server.engines.service import Caller
from onepass.server.http.errors import ErrorResponse

LONGEST_ID = 128
LONGEST_TIMEOUT_MS = 86_400_000.0
MOST_URGENT, LEAST_URGENT = -100, 100


@dataclass
class RequestContext:
    """`route` is the path as it is written in the table of routes, so that it has few values."""

    request_id: str
    method: str
    began: float = field(default_factory=time.monotonic)
    route: str = "other"
    caller: Caller = field(default_factory=Caller)
    status: int = 0
    code: str | None = None  # of the error, if it was one
    error_body: Callable[[ErrorResponse], dict[str, Any]] | None = (
        None  # of a dialect whose errors have a form of their own
    )
    headers: dict[str, str] = field(default_factory=dict)  # that the answer or the error is sent with
    items: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    mode: str | None = None
    queue_ms: float | None = None
    device_ms: float | None = None
    padding_ratio: float | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def note(self, result: ScoreResult) -> None:
        """What was computed for this request; a request may need several."""
        self.items += len(result.scores)
        self.prompt_tokens += result.usage.prompt_tokens
        self.cached_tokens += result.usage.cached_tokens
        self.mode = result.mode
        self.queue_ms = max(self.queue_ms or 0.0, result.timings.queue_ms)
        self.device_ms = (self.device_ms or 0.0) + result.timings.device_ms
        self.padding_ratio = result.timings.padding_ratio


def exchange_of(scope: Scope) -> RequestContext:
    found: Any = scope["onepass.exchange"]
    assert isinstance(found, RequestContext)
    return found


def request_id_of(headers: Headers) -> str:
    """The client's own, if it is short and visible; else a new one."""
    given = headers.get("x-request-id", "")
    sane = 0 < len(given) <= LONGEST_ID and all("!" <= char <= "~" for char in given)
    return given if sane else uuid.uuid4().hex


def caller_of(key: str, request_id: str, headers: Headers, now: float) -> Caller:
    timeout = headers.get("x-request-timeout-ms")
    deadline = None if timeout is None else now + _timeout_ms(timeout) / 1e3
    priority = headers.get("x-priority")
    return Caller(key, 0 if priority is None else _priority(priority), deadline, request_id)


def _timeout_ms(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= LONGEST_TIMEOUT_MS:  # "nan" is a float, and not among them
        message = f"X-Request-Timeout-Ms must be a number from 1 to {LONGEST_TIMEOUT_MS:.0f}; got {text!r}"
        raise RequestError("invalid_timeout", message, "X-Request-Timeout-Ms")
    return value


def _priority(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = LEAST_URGENT + 1
    if not MOST_URGENT <= value <= LEAST_URGENT:
        message = f"X-Priority must be a whole number from {MOST_URGENT} to {LEAST_URGENT}; got {text!r}"
        raise RequestError("invalid_priority", message, "X-Priority")
    return value
