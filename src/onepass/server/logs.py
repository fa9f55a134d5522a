"""Log lines as JSON: what happened to a request, by its id, and never its text or its key.

Everything goes through the standard library's logging under the name "onepass.server".
"""

import logging
import sys
import time
from typing import Any, TextIO

import orjson

from onepass.server.exchange import Exchange
from onepass.server.keys import OPEN_PATHS

NAME = "onepass.server"
QUIET_ROUTES = OPEN_PATHS | {"/metrics"}  # asked for every few seconds


class JsonLines(logging.Formatter):
    """One JSON object a line. `extra={"fields": {…}}` adds members."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.gmtime(record.created)
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', moment)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def configure_logs(level: str = "info", stream: TextIO | None = None) -> logging.Logger:
    """Send the server's log to `stream`, by default stderr, and nowhere else."""
    logger = logging.getLogger(NAME)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    return logger


def log_exchange(logger: logging.Logger, exchange: Exchange) -> None:
    """Requests at level info, those that failed by our own fault at error; health checks only at debug."""
    level = logging.ERROR if exchange.status == 500 else logging.INFO
    if exchange.route in QUIET_ROUTES and exchange.status != 500:
        level = logging.DEBUG
    if logger.isEnabledFor(level):
        logger.log(level, "request", extra={"fields": _fields(exchange)})


def _fields(exchange: Exchange) -> dict[str, Any]:
    told: dict[str, Any] = {
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
    return {name: value for name, value in told.items() if value is not None}
