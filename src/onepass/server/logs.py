"""The server's log: one format for everything that reaches stderr, JSON lines or plain text.

Records of the standard library's logging carry `extra={"fields": {…}}`, which both formats show, and
`extra={"data": {…}}`, which repeats in JSON what the message says in words. Requests are logged by `access_log`; what
engine processes write comes through `log_relay`.
"""

import logging
import sys
import threading
import time
from functools import lru_cache
from types import TracebackType
from typing import Any, Literal, TextIO

import orjson

NAME = "onepass.server"
Format = Literal["json", "text"]


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{_second(int(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **({} if record.name.startswith("onepass") else {"logger": record.name}),
            **getattr(record, "data", {}),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class TextLines(logging.Formatter):
    """`13:41:21 info  message  name=value`, in local time; a traceback on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        fields = dict(getattr(record, "fields", {}))
        traceback = fields.pop("traceback", None)
        if record.exc_info:
            traceback = self.formatException(record.exc_info)
        shown = "".join(f"  {name}={value}" for name, value in fields.items())
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{moment} {record.levelname.lower():<7} {record.getMessage()}{shown}"
        return line if traceback is None else f"{line}\n{traceback}"


@lru_cache(maxsize=4)  # hundreds of requests are logged in one second
def _second(moment: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))


FORMATTERS: dict[Format, type[logging.Formatter]] = {"json": JsonLines, "text": TextLines}


def configure_logs(level: str = "info", stream: TextIO | None = None, form: Format = "json") -> logging.Logger:
    """Send the server's log to `stream`, by default stderr, and nowhere else."""
    logger = logging.getLogger(NAME)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(FORMATTERS[form]())
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    return logger


def capture_process(handler: logging.Handler) -> None:
    """Send everything else that this process would print on stderr to `handler`: warnings and errors of other
    libraries' loggers (uvicorn, asyncio, JAX), Python's warnings, and uncaught exceptions of any thread. Only for a
    process of our own."""
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)

    def uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            root.critical("uncaught exception", exc_info=(kind, error, traceback))

    sys.excepthook = uncaught
    threading.excepthook = lambda failure: uncaught(
        failure.exc_type, failure.exc_value or failure.exc_type(), failure.exc_traceback
    )
