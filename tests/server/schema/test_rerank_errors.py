"""What is wrong with a rerank request, and what went wrong with it: codes, fields and each dialect's own error."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from onepass.errors import DeadlineExceeded, EngineUnavailable, Overloaded
from server.asking import NIM, RERANK, TEI, check_error, check_tei_error
from server.in_process import InProcess


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"query": None}, "missing_query", "query"),
        ({"query": ""}, "empty_query", "query"),
        ({"query": ["x"]}, "invalid_query_type", "query"),
        ({"documents": None}, "missing_documents", "documents"),
        ({"documents": []}, "empty_documents", "documents"),
        ({"documents": 5}, "invalid_documents_type", "documents"),
        ({"documents": ["a", 5]}, "invalid_documents_type", "documents[1]"),
        ({"documents": [{"image": "x"}]}, "invalid_documents_type", "documents[0]"),
        ({"documents": [{"text": 5}]}, "invalid_documents_type", "documents[0]"),
        ({"documents": [{"a": "x"}], "rank_fields": ["b"]}, "invalid_documents_type", "documents[0]"),
        ({"rank_fields": "text"}, "invalid_rank_fields", "rank_fields"),
        ({"top_n": -1}, "invalid_top_n", "top_n"),
        ({"top_n": 1.5}, "invalid_top_n", "top_n"),
        ({"top_k": 0}, "invalid_top_k", "top_k"),
        ({"return_documents": "yes"}, "invalid_return_documents", "return_documents"),
        ({"instruction": 5}, "invalid_instruction", "instruction"),
        ({"instruction": "a", "instruct": "b"}, "conflicting_fields", "instruct"),
        ({"max_tokens_per_doc": -1}, "invalid_max_tokens_per_doc", "max_tokens_per_doc"),
        ({"max_tokens_per_query": -1}, "invalid_max_tokens_per_query", "max_tokens_per_query"),
        ({"chat_template_kwargs": {"instruction": 5}}, "invalid_chat_template_kwargs", "chat_template_kwargs"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "unknown_field", "chat_template_kwargs"),
        ({"instruction": "a", "chat_template_kwargs": {"instruction": "a"}}, "conflicting_fields", None),
        ({"truncate_prompt_tokens": 0}, "invalid_truncate_prompt_tokens", "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 5}, "too_long", "query"),
        ({"truncation_side": "middle"}, "invalid_truncation_side", "truncation_side"),
        ({"method": "magic"}, "invalid_method", "method"),
    ],
)
def test_mistakes_have_their_codes(client: TestClient, change: dict[str, Any], code: str, param: str | None) -> None:
    check_error(client.post("/rerank", json={**RERANK, **change}), 400, code, param)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/rerank", {**RERANK, "documents": [], "top_k": 3}, "documents"),
        ("/v1/ranking", {**NIM, "passages": []}, "passages"),
    ],
)
def test_no_dialect_takes_no_documents(client: TestClient, path: str, body: dict[str, Any], param: str) -> None:
    check_error(client.post(path, json=body), 400, "empty_documents", param)


def test_overload_is_told_in_every_dialect(client: TestClient, service: InProcess) -> None:
    service.failure = Overloaded("too much is waiting", 2)
    for path, body in (("/rerank", RERANK), ("/v1/ranking", NIM), ("/v2/rerank", RERANK)):
        answer = client.post(path, json=body)
        check_error(answer, 429, "overloaded")
        assert answer.headers["retry-after"] == "2"
    answer = client.post("/rerank", json=TEI)
    check_tei_error(answer, 429, "Overloaded", "overloaded")
    assert answer.headers["retry-after"] == "2"


@pytest.mark.parametrize(
    ("failure", "status", "error_type", "code"),
    [
        (EngineUnavailable("restarting", 1.0), 503, "Unhealthy", "engine_unavailable"),
        (DeadlineExceeded("late"), 504, "Backend", "deadline_exceeded"),
        (ZeroDivisionError("ours"), 500, "Backend", "internal_error"),
    ],
)
def test_failures_have_the_types_of_text_embeddings_inference(
    client: TestClient, service: InProcess, failure: Exception, status: int, error_type: str, code: str
) -> None:
    service.failure = failure
    check_tei_error(client.post("/rerank", json=TEI), status, error_type, code)


@pytest.mark.parametrize(
    ("change", "code"),
    [({"texts": []}, "empty_documents"), ({"query": ""}, "empty_query"), ({"x": 1}, "unknown_field")],
)
def test_mistakes_have_the_error_of_text_embeddings_inference(
    client: TestClient, change: dict[str, Any], code: str
) -> None:
    check_tei_error(client.post("/rerank", json={**TEI, **change}), 400, "Validation", code)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"documents": [None]}, "got null"),
        ({"top_n": True}, "got true"),
        ({"documents": {"a": False}}, "got {'a': false}"),
    ],
)
def test_messages_show_what_came_in_the_words_of_json(client: TestClient, change: dict[str, Any], words: str) -> None:
    error = check_error(client.post("/rerank", json={**RERANK, **change}), 400)
    assert error["message"].endswith(words)
