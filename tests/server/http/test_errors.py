"""Errors: one body, one table, and nothing of the inside of the server in it."""

import logging
from typing import Any

import pytest
from starlette.testclient import TestClient

from onepass.errors import (
    ContextNotFound,
    DeadlineExceeded,
    DoesNotFit,
    EngineUnavailable,
    Overloaded,
    RequestError,
    TooLong,
)
from onepass.server.http.errors import LONGEST_MESSAGE, error_response
from server.asking import RERANK, SCORE, check_error, without
from server.in_process import InProcess


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RequestError("some_code", "wrong", "items"), 400, "some_code"),
        (TooLong("the query has 9 tokens; the limit is 8", "query"), 400, "too_long"),
        (DoesNotFit("needs 9 bytes"), 400, "does_not_fit"),
        (ContextNotFound("no such context"), 404, "context_not_found"),
        (Overloaded("too much is waiting", 2.2), 429, "overloaded"),
        (EngineUnavailable("the engine restarts", 5.0), 503, "engine_unavailable"),
        (EngineUnavailable("shutting down", 5.0, code="draining"), 503, "draining"),
        (DeadlineExceeded("too late"), 504, "deadline_exceeded"),
    ],
)
def test_each_error_has_its_status_and_code(
    client: TestClient, service: InProcess, error: Exception, status: int, code: str
) -> None:
    service.failure = error
    answer = client.post("/v1/score", json=SCORE)
    assert check_error(answer, status, code)["message"] == str(error)
    retry_after = getattr(error, "retry_after", None)
    assert answer.headers.get("retry-after") == (None if retry_after is None else str(-int(-retry_after // 1)))


def test_an_error_of_our_own_tells_the_request_id_and_nothing_else(
    client: TestClient, service: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    service.failure = ZeroDivisionError("secret internals")
    with caplog.at_level(logging.ERROR, "onepass.server"):
        answer = client.post("/v1/score", json=SCORE, headers={"X-Request-Id": "find-me"})
    error = check_error(answer, 500, "internal_error")
    assert "find-me" in error["message"]
    assert "secret" not in answer.text
    assert "ZeroDivisionError" not in answer.text
    [record] = [r for r in caplog.records if r.exc_info]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ZeroDivisionError)
    service.failure = None
    assert client.post("/v1/score", json=SCORE).status_code == 200, "the next one is served"


def test_an_error_does_not_repeat_all_that_came() -> None:
    body = error_response(RequestError("invalid", "got " + "x" * 100_000), "id").body()
    assert len(body["message"]) <= LONGEST_MESSAGE + 1


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"query": None}, "missing_query", "query"),
        ({"query": ""}, "empty_query", "query"),
        ({"query": []}, "empty_query", "query"),
        ({"query": 5}, "invalid_query_type", "query"),
        ({"query": {"text": "x"}}, "invalid_query_type", "query"),
        ({"items": None}, "missing_items", "items"),
        ({"items": 7}, "invalid_items_type", "items"),
        ({"items": ["a", 7]}, "invalid_items_type", "items[1]"),
        ({"items": ["a", [7]]}, "mixed_input_types", "items"),
        ({"items": [[1], [2]]}, "mixed_input_types", "items"),
        ({"query": [True], "items": [[1]]}, "invalid_token_id_type", "query"),
        ({"query": [1.5], "items": [[1]]}, "invalid_token_id_type", "query"),
        ({"query": [1], "items": [[10**9]]}, "token_id_out_of_range", "items[0]"),
        ({"labels": None}, "missing_labels", "labels"),
        ({"labels": None, "label_token_ids": []}, "empty_label_token_ids", "label_token_ids"),
        ({"labels": None, "label_token_ids": [5, 5]}, "duplicate_label", "label_token_ids"),
        ({"labels": None, "label_token_ids": [-1]}, "negative_token_id", "label_token_ids"),
        ({"labels": None, "label_token_ids": [10**6]}, "token_id_exceeds_vocab", "label_token_ids"),
        ({"labels": None, "label_token_ids": [True]}, "invalid_token_id_type", "label_token_ids"),
        ({"label_token_ids": [1]}, "conflicting_labels", "labels"),
        ({"labels": [" yes and no"]}, "label_not_single_token", "labels"),
        ({"temperature": 2.0}, "invalid_temperature", "temperature"),
        ({"temperature": 0, "apply_softmax": True}, "invalid_temperature", "temperature"),
        ({"mode": "fast"}, "invalid_mode", "mode"),
        ({"items": ["far too long " * 2000]}, "too_long", "items"),
        ({"context_id": 5, "query": None}, "invalid_context_id", "context_id"),
        ({"context_id": "ctx-1"}, "conflicting_query", "query"),
        ({"priority": 0.5}, "invalid_priority", "priority"),
        ({"priority": 100000}, "invalid_priority", "priority"),
        ({"model": 5}, "invalid_model", "model"),
        ({"return_token_logprobs": "yes"}, "invalid_return_token_logprobs", "return_token_logprobs"),
        ({"text_1": "x"}, "conflicting_fields", "text_1"),
        ({"colour": "red"}, "unknown_field", "colour"),
        ({"return_pooled_hidden_states": True}, "unsupported_field", "return_pooled_hidden_states"),
        (
            {"return_token_logprobs": True, "label_mass": False, "apply_softmax": True},
            "conflicting_label_mass",
            "label_mass",
        ),
    ],
)
def test_every_mistake_in_a_score_request_has_its_code(
    client: TestClient, change: dict[str, Any], code: str, param: str
) -> None:
    check_error(client.post("/v1/score", json={**SCORE, **change}), 400, code, param)


def test_a_label_of_several_tokens_is_told_as_its_tokens(client: TestClient) -> None:
    error = check_error(client.post("/v1/score", json={**SCORE, "labels": [" yes no"]}), 400, "label_not_single_token")
    assert "' yes'" in error["message"]
    assert "' no'" in error["message"]


@pytest.mark.parametrize("path", ["/v1/score", "/rerank"])
def test_another_model_is_not_found_and_default_is(client: TestClient, path: str) -> None:
    body = SCORE if path == "/v1/score" else RERANK
    check_error(client.post(path, json={**body, "model": "gpt-9"}), 404, "model_not_found")
    check_error(client.post(path, json={**body, "model": ""}), 404, "model_not_found")
    assert client.post(path, json={**body, "model": "default"}).status_code == 200


def test_an_unknown_context_is_never_recomputed(client: TestClient) -> None:
    asked = {**without(SCORE, "query"), "context_id": "ctx-unknown"}
    check_error(client.post("/v1/score", json=asked), 404, "context_not_found")
    check_error(client.get("/v1/contexts/ctx-unknown"), 404, "context_not_found")
    check_error(client.delete("/v1/contexts/ctx-unknown"), 404, "context_not_found")


@pytest.mark.parametrize(
    ("header", "value", "code"),
    [
        ("X-Request-Timeout-Ms", "soon", "invalid_timeout"),
        ("X-Request-Timeout-Ms", "0.5", "invalid_timeout"),
        ("X-Request-Timeout-Ms", "-5", "invalid_timeout"),
        ("X-Request-Timeout-Ms", "nan", "invalid_timeout"),
        ("X-Request-Timeout-Ms", "inf", "invalid_timeout"),
        ("X-Priority", "high", "invalid_priority"),
        ("X-Priority", "101", "invalid_priority"),
    ],
)
def test_headers_that_mean_nothing_are_refused(client: TestClient, header: str, value: str, code: str) -> None:
    check_error(client.post("/v1/score", json=SCORE, headers={header: value}), 400, code, header)


def test_a_document_nested_too_deeply_to_be_given_back_is_the_callers_mistake(client: TestClient) -> None:
    """It is ranked by another field, and would be in the answer as it came."""
    statuses = {}
    for depth in (10, 500):
        deep = "[" * depth + "]" * depth
        document = f'{{"text": {deep}, "title": "b"}}'
        rest = '"rank_fields": ["title"], "return_documents": true'
        body = f'{{"query": "the sea", "documents": [{document}], {rest}}}'
        answer = client.post("/rerank", content=body, headers={"Content-Type": "application/json"})
        statuses[depth] = answer.status_code
    assert statuses == {10: 200, 500: 400}
