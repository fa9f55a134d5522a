"""`/v1/contexts`: opened, used, looked at, let go; and gone when it is gone."""

import time

import pytest
from starlette.testclient import TestClient

from server.asking import SCORE, check_error, without

LONG = "A user liked the film about a space ship; will the same user like the next film? " * 2


def test_a_kept_context_gives_the_same_scores(client: TestClient) -> None:
    opened = client.post("/v1/contexts", json={"query": LONG, "ttl_seconds": 60, "pin": True})
    assert opened.status_code == 200
    context = opened.json()
    assert context.keys() == {"id", "object", "tokens", "bytes", "expires_at", "pinned"}
    assert context["object"] == "context"
    assert context["tokens"] > 20
    assert context["bytes"] > 0
    assert 50 < context["expires_at"] - time.time() <= 61
    assert context["pinned"] is True
    assert client.get(f"/v1/contexts/{context['id']}").json() == context
    by_handle = client.post("/v1/score", json={**without(SCORE, "query"), "context_id": context["id"]}).json()
    by_query = client.post("/v1/score", json={**SCORE, "query": LONG, "mode": "extend"}).json()
    assert by_handle["scores"] == by_query["scores"]
    assert by_handle["usage"]["prompt_tokens_details"]["cached_tokens"] >= context["tokens"]
    gone = client.delete(f"/v1/contexts/{context['id']}")
    assert gone.json() == {"id": context["id"], "object": "context", "deleted": True}
    check_error(client.get(f"/v1/contexts/{context['id']}"), 404, "context_not_found")
    again = client.post("/v1/score", json={**without(SCORE, "query"), "context_id": context["id"]})
    check_error(again, 404, "context_not_found")


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"query": None}, "missing_query", "query"),
        ({"query": ""}, "empty_query", "query"),
        ({"query": 3}, "invalid_query_type", "query"),
        ({"ttl_seconds": 0}, "invalid_ttl", "ttl_seconds"),
        ({"ttl_seconds": True}, "invalid_ttl", "ttl_seconds"),
        ({"ttl_seconds": "long"}, "invalid_ttl", "ttl_seconds"),
        ({"ttl_seconds": 1e12}, "invalid_ttl", "ttl_seconds"),
        ({"pin": 1}, "invalid_pin", "pin"),
        ({"items": []}, "unknown_field", "items"),
        ({"item_role": "judge"}, "invalid_messages", "item_role"),
    ],
)
def test_mistakes_have_their_codes(client: TestClient, change: dict[str, object], code: str, param: str) -> None:
    check_error(client.post("/v1/contexts", json={"query": LONG, **change}), 400, code, param)


def test_a_context_of_messages_is_found_by_requests_with_the_same_messages(client: TestClient) -> None:
    messages = [{"role": "system", "content": LONG}, {"role": "user", "content": "Is it so? {item}"}]
    context = client.post("/v1/contexts", json={"messages": messages}).json()
    asked = {**without(SCORE, "query"), "messages": messages, "return_prompt": True}
    told = client.post("/v1/score", json=asked).json()
    shared = told["prompt"]["shared"]["token_ids"]
    assert context["tokens"] == len(shared)
    assert told["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(shared)
    follow = [item["token_ids"] for item in told["prompt"]["items"]]
    by_handle = {"context_id": context["id"], "items": follow, "labels": SCORE["labels"]}
    scores = client.post("/v1/score", json=by_handle).json()["scores"]
    assert [p for row in scores for p in row] == pytest.approx([p for row in told["scores"] for p in row], abs=1e-6)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"query": "a", "messages": [{"role": "user", "content": "b"}]}, "conflicting_query", "query"),
        ({"messages": [{"role": "judge", "content": "b"}]}, "invalid_messages", "messages[0].role"),
        ({"messages": []}, "invalid_messages", "messages"),
        ({}, "missing_query", "query"),
    ],
)
def test_mistakes_in_messages_have_their_codes(
    client: TestClient, body: dict[str, object], code: str, param: str
) -> None:
    check_error(client.post("/v1/contexts", json=body), 400, code, param)
