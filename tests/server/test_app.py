"""The application as a whole: its paths, methods, request ids, browsers' headers, and no JAX."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import onepass
from onepass.errors import EngineUnavailable
from onepass.server.engines.service import Health
from server.asking import SCORE, check_error
from server.in_process import InProcess


def test_the_application_needs_no_jax() -> None:
    """In a process of its own, since this one has it."""
    code = "import sys, onepass.server.app; print([m for m in sys.modules if m.split('.')[0] in ('jax', 'jaxlib')])"
    environment = {**os.environ, "PYTHONPATH": str(Path(onepass.__file__).parents[1])}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_the_index_says_where_to_look(client: TestClient) -> None:
    index = client.get("/").json()
    assert client.get(index["docs"]).status_code == 200
    assert client.get(index["openapi"]).json()["openapi"] == "3.1.0"


def test_health_is_200_only_when_a_request_would_be_served(client: TestClient, service: InProcess) -> None:
    assert client.get("/health").json()["status"] == "ok"
    progress = {"stage": "weights", "done": 3, "of": 30}
    service.told_health = Health(False, "loading", "the engine is loading weights", progress, 2)
    answer = client.get("/health")
    check_error(answer, 503, "engine_unavailable")
    assert answer.json() | {"state": "loading", "progress": progress, "restarts": 2} == answer.json()
    assert "loading weights" in answer.json()["reason"]
    assert answer.headers["retry-after"] == "1"
    assert client.get("/live").json() == {"status": "alive"}


@pytest.mark.parametrize("path", ["/ready", "/readyz"])
def test_readiness_under_the_names_of_others(client: TestClient, service: InProcess, path: str) -> None:
    assert client.get(path).json() == client.get("/health").json()
    service.told_health = Health(False, "loading", "the engine is loading weights", {}, 0)
    check_error(client.get(path), 503, "engine_unavailable")


@pytest.mark.parametrize("path", ["/healthz", "/livez"])
def test_liveness_under_the_names_of_others(client: TestClient, service: InProcess, path: str) -> None:
    service.told_health = Health(False, "loading", "the engine is loading weights", {}, 0)
    assert client.get(path).json() == {"status": "alive"}


def test_health_says_when_the_server_drains(client: TestClient, service: InProcess) -> None:
    service.told_health = Health(False, "draining", "the server is shutting down", {}, 0)
    check_error(client.get("/health"), 503, "draining")


def test_models_are_listed_as_openai_lists_them(client: TestClient) -> None:
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    [model] = listed["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("qwen3", "model", 1024)
    assert client.get("/v1/models/qwen3").json() == model
    check_error(client.get("/v1/models/some/other"), 404, "model_not_found")


def test_a_model_with_several_names_answers_to_each(client: TestClient, service: InProcess) -> None:
    service.aliases = ("rerank-v3.5", "org/reranker")
    listed = client.get("/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["qwen3", "rerank-v3.5", "org/reranker"]
    assert client.get("/v1/models/org/reranker").json()["id"] == "org/reranker"
    for name in ("qwen3", "rerank-v3.5", "org/reranker", "default"):
        assert client.post("/v1/score", json={**SCORE, "model": name}).json()["model"] == name
    assert client.post("/v1/score", json=SCORE).json()["model"] == "qwen3"
    error = check_error(client.post("/v1/score", json={**SCORE, "model": "other"}), 404, "model_not_found")
    assert "'qwen3', 'rerank-v3.5', 'org/reranker'; got 'other'" in error["message"]


def test_info_has_the_whole_configuration_and_works_before_the_engine(client: TestClient, service: InProcess) -> None:
    info = client.get("/info").json()
    assert (info["model"], info["details"]["device"]) == ("qwen3", "cpu")
    assert info["ranking"]["method"] == "likelihood"
    assert info["limits"]["max_body_bytes"] > 0
    service.unavailable = EngineUnavailable("no engine is ready yet")
    assert client.get("/info").json()["model"] is None
    check_error(client.get("/v1/models"), 503, "engine_unavailable")
    check_error(client.post("/v1/score", json=SCORE), 503, "engine_unavailable")


def test_an_unknown_path_is_404_and_a_wrong_method_405(client: TestClient) -> None:
    check_error(client.get("/v1/nothing"), 404, "not_found")
    check_error(client.post("/"), 405, "method_not_allowed")
    answer = client.get("/v1/score")
    check_error(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    assert client.put("/v1/contexts/x").headers["allow"] == "GET, DELETE"


def test_head_and_options_are_answered(client: TestClient) -> None:
    assert client.head("/health").status_code == 200
    check_error_free = client.options("/v1/score")
    assert (check_error_free.status_code, check_error_free.headers["allow"]) == (204, "POST, OPTIONS")
    assert client.options("/health").headers["allow"] == "GET, HEAD, OPTIONS"


def test_a_slash_at_the_end_is_the_same_path(client: TestClient) -> None:
    assert client.get("/health/", follow_redirects=False).status_code == 200
    assert client.post("/v1/score/", json={**SCORE, "items": []}).json()["scores"] == []


@pytest.mark.parametrize("path", ["/health", "/v1/nothing", "/v1/score"])
def test_every_answer_has_a_request_id_and_keeps_a_sane_one(client: TestClient, path: str) -> None:
    first, second = client.get(path), client.get(path)
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert client.get(path, headers={"X-Request-Id": "my-id_1.~!"}).headers["x-request-id"] == "my-id_1.~!"
    for bad in ("two words", "x" * 129, ""):
        assert client.get(path, headers={"X-Request-Id": bad}).headers["x-request-id"] != bad
    assert client.get(path, headers={b"X-Request-Id": b"caf\xc3\xa9"}).headers["x-request-id"].isascii()


def test_browsers_are_let_in_only_from_the_origins_given(client_of: Callable[..., TestClient]) -> None:
    asked = {"Origin": "https://one.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in client_of().options("/v1/score", headers=asked).headers
    one = client_of(cors_origins=["https://one.example"], keys={"a": "secret"})
    preflight = one.options("/v1/score", headers=asked)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://one.example"
    refused = one.post("/v1/score", json=SCORE, headers={"Origin": "https://one.example"})
    check_error(refused, 401, "invalid_api_key")
    assert refused.headers["access-control-allow-origin"] == "https://one.example", "a page can read the error"
    other = one.post("/v1/score", json=SCORE, headers={"Origin": "https://two.example"})
    assert "access-control-allow-origin" not in other.headers
