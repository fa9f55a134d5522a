"""`return_trace` over HTTP: the library's trace, in streams and between the processes; mistakes as 400."""

import json
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from onepass.api import ScoreRequest, Timings, Usage
from onepass.client.calls import score_call
from onepass.engine.readout import ReadOut, RunInfo
from onepass.scorer import Scorer
from onepass.server.engines.protocol import answer_frame, answered
from server.asking import check_error

BODY: dict[str, Any] = {"query": "The capital of", "items": [" France is", " Italy is"], "labels": [" yes", " no"]}
TIMES = ("number", "launched_ms", "collected_ms", "device_ms", "compilations")


def without_times(trace: dict[str, Any]) -> dict[str, Any]:
    steps = [{name: value for name, value in step.items() if name not in TIMES} for step in trace["steps"]]
    return json.loads(json.dumps({**trace, "steps": steps}))


def test_the_answer_has_the_librarys_trace(client: TestClient, tiny_scorer: Scorer) -> None:
    tiny_scorer.engine.contexts.clear()
    answer = client.post("/v1/score", json={**BODY, "return_trace": True})
    assert answer.status_code == 200, answer.text
    got = answer.json()
    tiny_scorer.engine.contexts.clear()
    right = tiny_scorer.score(**BODY, return_trace=True)
    assert right.trace is not None
    assert without_times(got["trace"]) == without_times(right.trace.to_dict())
    steps = got["trace"]["steps"]
    assert sum(step["tokens"] for step in steps) == got["usage"]["prompt_tokens_details"]["computed_tokens"]
    assert sum(step["device_ms"] for step in steps) == pytest.approx(got["timings"]["device_ms"], abs=0.01)
    assert steps[0]["launched_ms"] == pytest.approx(got["timings"]["queue_ms"], abs=0.01)
    assert "trace" not in client.post("/v1/score", json=BODY).json()


def test_a_trace_holds_no_text_and_no_token_id(client: TestClient) -> None:
    """Numbers under known names only."""
    trace = client.post("/v1/score", json={**BODY, "return_trace": True}).json()["trace"]
    assert not any(isinstance(value, str) for step in trace["steps"] for value in step.values())
    assert set(trace["steps"][0]["segments"][0]) == {
        "first", "tokens", "segment", "parent", "context", "position", "item",
    }  # fmt: skip


def test_a_stream_has_the_trace_in_its_last_line(client: TestClient) -> None:
    headers = {"Accept": "application/x-ndjson"}
    lines = client.post("/v1/score", json={**BODY, "return_trace": True}, headers=headers).text.splitlines()
    last = json.loads(lines[-1])
    assert sum(step["tokens"] for step in last["trace"]["steps"]) > 0
    assert not any("trace" in json.loads(line) for line in lines[:-1])


@pytest.mark.parametrize("wrong", [1, "yes", [], {}])
def test_another_type_is_refused(client: TestClient, wrong: Any) -> None:
    check_error(client.post("/v1/score", json={**BODY, "return_trace": wrong}), 400, "invalid_return_trace")


def test_the_client_reads_the_trace(client: TestClient) -> None:
    call = score_call(ScoreRequest(**BODY, return_trace=True), None)
    assert call.body is not None
    assert call.body["return_trace"] is True
    result = call.read(client.post(call.path, json=call.body).json())
    assert result.trace is not None
    assert [one.item for one in result.trace.steps[-1].segments][-2:] == [0, 1]


def test_a_trace_passes_between_the_processes(tiny_scorer: Scorer) -> None:
    trace = tiny_scorer.score(**BODY, return_trace=True).trace
    read = ReadOut(np.zeros(1, np.float32), np.zeros(1, np.float32))
    info = RunInfo("m", "packed", "why", Usage(1), Timings(), trace)
    assert answered(answer_frame(1, read, info))[1] == info
