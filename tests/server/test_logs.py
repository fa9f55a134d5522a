"""Logs: one JSON line a request, with what is needed to find and judge it, and without its text or its key."""

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from onepass.server.logs import JsonLines, TextLines, capture_process, configure_logs
from server.asking import RERANK, SCORE
from server.in_process import InProcess

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What the log says, of a logger that is put back afterwards."""
    stream = io.StringIO()
    logger = configure_logs("info", stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


def test_a_request_is_one_line(client: TestClient, lines: Lines) -> None:
    client.post("/v1/score", json=SCORE, headers={"X-Request-Id": "one"})
    [line] = lines()
    assert line["message"] == "request"
    assert (line["request_id"], line["route"], line["status"], line["method"]) == ("one", "/v1/score", 200, "POST")
    assert line["items"] == 3
    assert line["prompt_tokens"] > 0
    assert line["ms"] > 0
    assert line["mode"] in ("packed", "extend", "chunked")
    assert line["time"].endswith("Z")


def test_no_line_holds_text_or_keys(client_of: Callable[..., TestClient], lines: Lines) -> None:
    client = client_of(keys={"alice": "sk-secret-key"})
    headers = {"Authorization": "Bearer sk-secret-key"}
    client.post("/v1/score", json={**SCORE, "query": "confidential words"}, headers=headers)
    client.post("/v1/score", json={**SCORE, "items": ["confidential words", 5]}, headers=headers)
    client.post("/rerank", json={**RERANK, "query": "confidential words"}, headers=headers)
    client.post("/rerank", json=RERANK, headers={"Authorization": "Bearer confidential"})
    told = lines()
    assert [line["status"] for line in told] == [200, 400, 200, 401]
    assert told[1]["code"] == "mixed_input_types" or told[1]["code"] == "invalid_items_type"
    assert told[0]["key"] == "alice"
    assert "confidential" not in json.dumps(told)
    assert "sk-secret-key" not in json.dumps(told)


def test_health_checks_do_not_fill_the_log(client: TestClient, lines: Lines) -> None:
    for path in ("/health", "/ready", "/live", "/healthz", "/metrics"):
        client.get(path)
    assert lines() == []


def test_our_own_failure_is_logged_with_its_traceback(client: TestClient, service: InProcess, lines: Lines) -> None:
    service.failure = ZeroDivisionError("inside")
    client.post("/v1/score", json=SCORE, headers={"X-Request-Id": "broken"})
    failure, request = lines()
    assert failure["level"] == request["level"] == "error"
    assert failure["request_id"] == request["request_id"] == "broken"
    assert "ZeroDivisionError: inside" in failure["traceback"]


def test_any_record_is_one_line_of_json() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "two\nlines %s", ("of “text”",), None)
    assert json.loads(JsonLines().format(record))["message"] == "two\nlines of “text”"
    assert "\n" not in JsonLines().format(record)


def test_text_shows_the_fields_and_leaves_out_what_the_message_says() -> None:
    record = logging.LogRecord("onepass.server", logging.INFO, "", 0, "request", (), None)
    record.fields, record.data = {"status": 200, "ms": 1.5}, {"url": "http://x"}
    assert TextLines().format(record)[8:] == " info    request  status=200  ms=1.5"
    assert json.loads(JsonLines().format(record)).items() >= {"status": 200, "ms": 1.5, "url": "http://x"}.items()


def test_text_has_tracebacks_on_their_own_lines() -> None:
    try:
        raise ZeroDivisionError("inside")
    except ZeroDivisionError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "broken", (), sys.exc_info())
    first, *rest = TextLines().format(record).splitlines()
    assert first.endswith("error   broken")
    assert rest[-1] == "ZeroDivisionError: inside"


@pytest.fixture
def everything() -> Iterator[Lines]:
    """What `capture_process` catches; the process is put back afterwards."""
    root, hooks = logging.getLogger(), (sys.excepthook, threading.excepthook)
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    # A server of another test in this process may have configured uvicorn's loggers.
    uvicorn = [logging.getLogger(name) for name in ("uvicorn", "uvicorn.error")]
    configured = [(logger.level, logger.propagate) for logger in uvicorn]
    for logger in uvicorn:
        logger.level, logger.propagate = logging.NOTSET, True
    capture_process(handler)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logging.captureWarnings(False)
    sys.excepthook, threading.excepthook = hooks
    root.handlers[:], root.level = handlers, level
    for logger, (old_level, propagate) in zip(uvicorn, configured, strict=True):
        logger.level, logger.propagate = old_level, propagate


def test_other_libraries_warnings_and_uncaught_errors_are_records_too(everything: Lines) -> None:
    logging.getLogger("jax._src.xla_bridge").info("Unable to initialize backend 'tpu'")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old\nuse", DeprecationWarning, stacklevel=1)
    thread = threading.Thread(target=lambda: [][1])
    thread.start()
    thread.join()
    refused, warned, died = everything()
    assert (refused["logger"], refused["message"]) == ("uvicorn.error", "Invalid HTTP request received.")
    assert (warned["logger"], warned["level"]) == ("py.warnings", "warning")
    assert (died["level"], died["message"]) == ("critical", "uncaught exception")
    assert "IndexError" in died["traceback"]
