"""One log record per request, by its id and never with its text or its key. Formats are `logs`'s."""

import logging
from typing import Any

from onepass.server.http.auth import OPEN_PATHS
from onepass.server.http.request_context import RequestContext

QUIET_ROUTES = OPEN_PATHS | {"/metrics"}  # asked for every few seconds


def log_exchange(logger: logging.Logger, exchange: RequestContext) -> None:
    """Requests at level info, those that failed by our own fault at error; health checks only at debug."""
    level = logging.ERROR if exchange.status == 500 else logging.INFO
    if exchange.route in QUIET_ROUTES and exchange.status != 500:
        level = logging.DEBUG
    if logger.isEnabledFor(level):
        logger.log(level, "request", extra={"fields": _fields(exchange)})


def _fields(exchange: RequestContext) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "request_id": exchange.request_id,
        "method": exchange.method,
        "route": exchange.route,
        "status": exchange.status,
        "ms": round(1e3 * exchange.seconds, 3),
        "key": exchange.caller.key or None,
        "code": exchange.code,
        "items": exchange.items or None,
        "prompt_tokens": exchange.prompt_tokens or None,
        "cached_tokens": exchange.cached_tokens or None,
        "mode": exchange.mode,
        "queue_ms": exchange.queue_ms,
        "device_ms": exchange.device_ms,
    }
    return {name: value for name, value in fields.items() if value is not None}
