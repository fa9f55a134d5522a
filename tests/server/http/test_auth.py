"""API keys: needed where they are configured, in the headers that clients use, and never told."""

from collections.abc import Callable

import pytest
from starlette.testclient import TestClient

from server.asking import SCORE, check_error
from server.in_process import InProcess

KEYS = {"alice": "sk-alice-1", "bob": "sk-böb-2"}


@pytest.fixture
def guarded(client_of: Callable[..., TestClient]) -> TestClient:
    return client_of(keys=KEYS)


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer sk-alice-1"},
        {"Authorization": "bearer  sk-alice-1"},
        {"Authorization": "sk-alice-1"},
        {"X-API-Key": "sk-alice-1"},
        {"api-key": "sk-alice-1"},
    ],
)
def test_a_key_is_taken_from_the_headers_clients_use(
    guarded: TestClient, service: InProcess, headers: dict[str, str]
) -> None:
    assert guarded.post("/v1/score", json=SCORE, headers=headers).status_code == 200
    assert service.callers[-1].key == "alice"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic sk-alice-1"},
        {"X-API-Key": "sk-alice-"},
        {"X-API-Key": "sk-alice-11"},
        {"X-API-Key": ""},
        {"X-API-Key": "alice"},
    ],
)
def test_anything_else_is_401(guarded: TestClient, service: InProcess, headers: dict[str, str]) -> None:
    answer = guarded.post("/v1/score", json=SCORE, headers=headers)
    check_error(answer, 401, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert not any(key in answer.text for key in KEYS.values())
    assert not service.callers


@pytest.mark.parametrize("path", ["/metrics", "/info", "/docs", "/openapi.json", "/v1/models", "/", "/nothing"])
def test_everything_but_health_is_guarded(guarded: TestClient, path: str) -> None:
    check_error(guarded.get(path), 401, "invalid_api_key")


@pytest.mark.parametrize("path", ["/health", "/ready", "/readyz", "/live", "/livez", "/healthz"])
def test_health_is_open(guarded: TestClient, path: str) -> None:
    assert guarded.get(path).status_code == 200


def test_without_keys_everyone_may_ask(client: TestClient, service: InProcess) -> None:
    assert client.post("/v1/score", json=SCORE, headers={"Authorization": "Bearer whatever"}).status_code == 200
    assert service.callers[-1].key == ""


def test_all_keys_are_compared_whichever_it_is(guarded: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time then says nothing of which key was nearly right."""
    import hmac

    compared: list[int] = []
    compare = hmac.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        compared.append(len(one) + len(other))
        return compare(one, other)

    monkeypatch.setattr("onepass.server.http.auth.hmac.compare_digest", counting)
    for key in ("sk-alice-1", "x", "much longer than any key there is"):
        compared.clear()
        guarded.get("/info", headers={"X-API-Key": key})
        assert compared == [64, 64]
