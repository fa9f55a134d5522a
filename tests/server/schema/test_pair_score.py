"""Pairs as vLLM's `/score` takes them, under all the names it has given them."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from onepass.errors import Overloaded
from server.asking import DOCUMENTS, RERANK, check_error
from server.in_process import InProcess


def scores(client: TestClient, body: dict[str, Any], path: str = "/score") -> list[float]:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told.keys() == {"id", "object", "created", "model", "data", "usage"}
    assert told["object"] == "list"
    assert [one["index"] for one in told["data"]] == list(range(len(told["data"])))
    assert {one["object"] for one in told["data"]} == {"score"}
    assert told["usage"]["prompt_tokens"] > 0
    return [one["score"] for one in told["data"]]


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    ("first", "second"),
    [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")],
)
def test_one_query_with_many_documents_is_a_reranking_in_the_order_asked(
    client: TestClient, path: str, first: str, second: str
) -> None:
    results = client.post("/rerank", json=RERANK).json()["results"]
    relevance = {one["index"]: one["relevance_score"] for one in results}
    found = scores(client, {first: RERANK["query"], second: DOCUMENTS}, path)
    assert found == pytest.approx([relevance[i] for i in range(3)], rel=1e-4)  # summed in another order


def test_many_with_many_are_pairs(client: TestClient, service: InProcess) -> None:
    one, other = RERANK["query"], "the price of shoes"
    pairs = {"text_1": [one, other, one], "text_2": DOCUMENTS}
    told = scores(client, pairs)
    assert len(service.callers) == 2, "one request for each distinct query"
    first = scores(client, {"text_1": one, "text_2": [DOCUMENTS[0], DOCUMENTS[2]]})
    second = scores(client, {"text_1": other, "text_2": DOCUMENTS[1]})
    assert told == pytest.approx([first[0], second[0], first[1]], rel=1e-4)


def test_raw_scores_on_request(client: TestClient) -> None:
    body = {"text_1": RERANK["query"], "text_2": DOCUMENTS}
    assert all(score < 0 for score in scores(client, {**body, "use_activation": False}))
    assert all(0 <= score <= 1 for score in scores(client, {**body, "use_activation": True}))


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"text_1": "q"}, "missing_items", "documents"),
        ({"text_1": "q", "text_2": []}, "empty_documents", "text_2"),
        ({"text_1": [], "text_2": "d"}, "empty_documents", "text_1"),
        ({"text_1": ["a", "b"], "text_2": ["c"]}, "pair_count_mismatch", "queries"),
        ({"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "pair_count_mismatch", "queries"),
        ({"text_1": 5, "text_2": "d"}, "invalid_items_type", "text_1"),
        ({"text_1": "q", "text_2": ["d", 5]}, "invalid_items_type", "text_2"),
        ({"text_1": "", "text_2": "d"}, "empty_query", "queries"),
        ({"text_1": "q", "queries": "q", "text_2": "d"}, "conflicting_fields", "text_1"),
        ({"text_1": "q", "text_2": "d", "truncate_prompt_tokens": 5}, "too_long", "query"),
        ({"text_1": "q", "text_2": "d", "mm_processor_kwargs": {}}, "unsupported_field", "mm_processor_kwargs"),
        ({"text_1": "q", "text_2": "d", "query": "x"}, "conflicting_fields", "text_1"),
        ({"text_1": "q", "text_2": "d", "labels": [" yes"]}, "unknown_field", "labels"),
    ],
)
def test_mistakes_have_their_codes(client: TestClient, body: dict[str, Any], code: str, param: str) -> None:
    check_error(client.post("/score", json=body), 400, code, param)


def test_one_failure_among_many_is_the_answer(client: TestClient, service: InProcess) -> None:
    service.failure = Overloaded("too much is waiting", 1)
    body = {"text_1": ["a", "b", "c"], "text_2": ["d", "e", "f"]}
    check_error(client.post("/score", json=body), 429, "overloaded")
    assert service.running == 0


def test_pairs_are_cut_as_vllm_cuts_them(client: TestClient) -> None:
    body = {"queries": RERANK["query"], "documents": [DOCUMENTS[0], "Rome"], "max_tokens_per_query": 0}
    data = client.post("/score", json={**body, "max_tokens_per_doc": 3}).json()["data"]
    assert ["truncated" in one for one in data] == [True, False]
    whole = client.post("/score", json={**body, "max_tokens_per_doc": 0}).json()
    assert not any("truncated" in one for one in whole["data"])
    labelled = {**body, "method": "label"}
    cut = client.post("/score", json={**labelled, "max_tokens_per_query": 1}).json()
    assert cut["usage"]["prompt_tokens"] < client.post("/score", json=labelled).json()["usage"]["prompt_tokens"]
