"""OpenTelemetry, where it is installed and asked for: one span a request. Where spans go is the user's own set-up."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.datastructures import Headers

from onepass.errors import ConfigError
from onepass.server.http.request_context import RequestContext


class Spans:
    """Made only when spans are wanted; without OpenTelemetry's API package that is an error, not a silence."""

    def __init__(self) -> None:
        try:
            self._trace: Any = importlib.import_module("opentelemetry.trace")
            self._propagate: Any = importlib.import_module("opentelemetry.propagate")
        except ImportError as error:
            raise ConfigError(
                "--tracing needs the package opentelemetry-api: pip install 'onepass[tracing]'"
            ) from error
        self._tracer = self._trace.get_tracer("onepass")

    @contextmanager
    def request(self, exchange: RequestContext, headers: Headers) -> Iterator[None]:
        """A server span around a request, continuing the client's trace if it sent one."""
        parent = self._propagate.extract(dict(headers))
        kind = self._trace.SpanKind.SERVER
        with self._tracer.start_as_current_span(exchange.method, context=parent, kind=kind) as span:
            yield
            span.update_name(f"{exchange.method} {exchange.route}")
            for name, value in _attributes(exchange).items():
                span.set_attribute(name, value)
            if exchange.status >= 500:
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, exchange.code or ""))


def _attributes(exchange: RequestContext) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "http.request.method": exchange.method,
        "http.route": exchange.route,
        "http.response.status_code": exchange.status,
        "onepass.request_id": exchange.request_id,
        "onepass.items": exchange.items,
        "onepass.prompt_tokens": exchange.prompt_tokens,
        "onepass.cached_tokens": exchange.cached_tokens,
    }
    return attributes if exchange.mode is None else attributes | {"onepass.mode": exchange.mode}
