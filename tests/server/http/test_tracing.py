"""OpenTelemetry: a span a request where it is asked for, and an error at start-up where it cannot be had."""

import sys
from collections.abc import Callable

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.testclient import TestClient

from onepass.errors import ConfigError
from server.asking import SCORE

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_request_is_one_span_of_the_clients_trace(
    client_of: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer", lambda name: provider.get_tracer(name))
    client = client_of(spans=True)
    client.post("/v1/score", json=SCORE, headers={"traceparent": PARENT, "X-Request-Id": "seen"})
    [span] = kept.get_finished_spans()
    assert span.name == "POST /v1/score"
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == PARENT.split("-")[1]
    assert span.attributes is not None
    assert span.attributes["onepass.request_id"] == "seen"
    assert span.attributes["onepass.items"] == 3
    assert span.attributes["http.response.status_code"] == 200
    assert "relevant" not in str(dict(span.attributes)), "no text"


def test_spans_without_opentelemetry_are_refused(
    client_of: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ConfigError, match="opentelemetry-api"):
        client_of(spans=True)
