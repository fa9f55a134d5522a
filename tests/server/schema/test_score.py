"""`/v1/score`: the library's numbers in the contract's shape, whole and as lines."""

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from onepass.errors import EngineUnavailable, Overloaded
from onepass.scorer import Scorer
from server.asking import SCORE, check_error, without
from server.in_process import InProcess

MEMBERS = {
    *("id", "object", "created", "model", "scores", "token_logprobs", "label_mass"),
    *("mode", "reason", "timings", "usage"),
}
NDJSON = {"Accept": "application/x-ndjson"}


def score(client: TestClient, path: str = "/v1/score", **change: Any) -> dict[str, Any]:
    answer = client.post(path, json={**SCORE, **change})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def test_the_answer_has_the_contracts_shape(client: TestClient, tiny_scorer: Scorer) -> None:
    answer = client.post("/v1/score", json=SCORE, headers={"X-Request-Id": "abc"})
    told = answer.json()
    assert told.keys() == MEMBERS
    assert (told["id"], told["object"], told["model"]) == ("score-abc", "scoring", "qwen3")
    assert told["token_logprobs"] is None
    times = {"queue_ms", "encode_ms", "device_ms", "total_ms"}
    assert told["timings"].keys() == times | {"padding_ratio", "compilations"}
    assert told["timings"]["total_ms"] >= told["timings"]["device_ms"] > 0
    usage = told["usage"]
    assert usage["prompt_tokens"] == usage["total_tokens"] > 0
    assert usage["completion_tokens"] == 0
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0
    right = tiny_scorer.score(**SCORE)
    assert told["scores"] == right.scores
    assert told["label_mass"] == right.label_mass
    assert usage["prompt_tokens"] == right.usage.prompt_tokens
    details = usage["prompt_tokens_details"]
    assert details["cached_tokens"] + details["computed_tokens"] >= usage["prompt_tokens"]
    assert told["timings"]["padding_ratio"] >= 1.0


def test_the_model_is_told_as_the_request_named_it(client: TestClient) -> None:
    assert score(client, model="default")["model"] == "default"
    assert score(client, model="qwen3")["model"] == "qwen3"
    assert score(client, model=None)["model"] == "qwen3"


def test_without_softmax_scores_are_probabilities_and_with_it_they_sum_to_one(client: TestClient) -> None:
    plain, soft = score(client), score(client, apply_softmax=True)
    assert all(sum(row) < 1 for row in plain["scores"])
    assert [sum(row) for row in soft["scores"]] == pytest.approx([1, 1, 1])
    for a, b in zip(plain["scores"], soft["scores"], strict=True):
        assert a[0] / sum(a) == pytest.approx(b[0], rel=1e-5)
    warm = score(client, apply_softmax=True, temperature=5)
    assert abs(warm["scores"][0][0] - 0.5) < abs(soft["scores"][0][0] - 0.5)


def test_no_items_no_scores(client: TestClient) -> None:
    told = score(client, items=[])
    assert told["scores"] == []
    assert told.keys() == MEMBERS


def test_one_text_is_one_row(client: TestClient) -> None:
    assert score(client, items=SCORE["items"][0])["scores"][0] == pytest.approx(score(client)["scores"][0], rel=1e-4)
    assert len(score(client, items=SCORE["items"][0])["scores"]) == 1


def test_token_ids_mean_what_their_text_means(client: TestClient, tiny_scorer: Scorer) -> None:
    tokenizer = tiny_scorer.tokenizer
    ids = score(
        client,
        query=tokenizer.encode_query(SCORE["query"]),
        items=tokenizer.encode_items(SCORE["items"]),
        labels=None,
        label_token_ids=[tokenizer.encode_item(label)[0] for label in SCORE["labels"]],
    )
    assert ids["scores"] == score(client)["scores"]


def test_labels_may_differ_from_item_to_item(client: TestClient) -> None:
    told = score(client, labels=None, label_token_ids=[[5, 6], [7], [5, 6]])
    assert [len(row) for row in told["scores"]] == [2, 1, 2]


def test_logprobs_are_told_when_asked(client: TestClient, tiny_scorer: Scorer) -> None:
    told = score(client, return_token_logprobs=True)
    assert told["token_logprobs"] == tiny_scorer.score(**SCORE).logprobs


def test_our_own_members_are_honoured(client: TestClient, tiny_scorer: Scorer) -> None:
    change: dict[str, Any] = {"item_first": True, "delimiter_token_id": 9, "mode": "serial"}
    assert score(client, **change)["scores"] == tiny_scorer.score(**SCORE, **change).scores
    assert score(client, mode="serial")["mode"] == "serial"
    assert score(client, apply_softmax=True, label_mass=False)["label_mass"] is None


def test_continuations_are_told(client: TestClient, tiny_scorer: Scorer) -> None:
    body = {**without(SCORE, "labels"), "continuations": [" yes", " no and more"]}
    told = client.post("/v1/score", json=body).json()
    right = tiny_scorer.score(**body).to_dict()["continuations"]
    assert told["continuations"] == right
    assert told["scores"] == [[], [], []]


def test_each_item_has_continuations_of_its_own(client: TestClient, tiny_scorer: Scorer) -> None:
    own = [[" yes", " no and more"], [" no"], [" more", " yes", " no"]]
    told = client.post("/v1/score", json={**without(SCORE, "labels"), "continuations": own}).json()
    right = tiny_scorer.score(**without(SCORE, "labels"), continuations=own).to_dict()["continuations"]
    assert told["continuations"] == right
    assert [len(row) for row in right] == [2, 1, 3]
    answer = client.post("/v1/score", json={**without(SCORE, "labels"), "continuations": own[:2]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "continuation_count_mismatch")


def test_what_sglangs_clients_send_is_accepted(client: TestClient) -> None:
    told = score(client, rid="request-1", user="me", return_pooled_hidden_states=False, model="default")
    assert told["scores"] == score(client)["scores"]
    assert score(client, rid=["a", "b"])["object"] == "scoring"


def test_null_is_the_same_as_nothing(client: TestClient) -> None:
    optional = ("apply_softmax", "temperature", "item_first", "mode", "context_id", "priority", "label_mass", "rid")
    assert score(client, **dict.fromkeys(optional))["scores"] == score(client)["scores"]


def test_the_short_path_is_the_same(client: TestClient) -> None:
    assert score(client, "/score")["scores"] == score(client)["scores"]


def lines(answer: Any) -> list[dict[str, Any]]:
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.text.endswith("\n")
    return [json.loads(line) for line in answer.text.splitlines()]


def test_scores_can_come_as_lines_with_a_summary(client: TestClient) -> None:
    answer = client.post("/v1/score", json={**SCORE, "return_token_logprobs": True}, headers=NDJSON)
    *parts, last = lines(answer)
    assert answer.headers["x-request-id"]
    assert [part["first"] for part in parts] == [0, 2]
    assert {part["object"] for part in parts} == {"scoring.part"}
    whole = score(client, return_token_logprobs=True)
    assert [row for part in parts for row in part["scores"]] == whole["scores"]
    assert [row for part in parts for row in part["token_logprobs"]] == whole["token_logprobs"]
    assert last.keys() == (MEMBERS - {"scores", "token_logprobs"}) | {"items"}
    assert (last["object"], last["items"]) == ("scoring", 3)
    assert last["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]


def test_no_items_as_lines_is_the_summary_alone(client: TestClient) -> None:
    [last] = lines(client.post("/v1/score", json={**SCORE, "items": []}, headers=NDJSON))
    assert last["items"] == 0


def test_an_error_before_the_first_line_is_an_answer_like_any_other(client: TestClient, service: InProcess) -> None:
    check_error(client.post("/v1/score", json={**SCORE, "query": ""}, headers=NDJSON), 400, "empty_query")
    service.failure = Overloaded("too much is waiting", 3)
    answer = client.post("/v1/score", json=SCORE, headers=NDJSON)
    check_error(answer, 429, "overloaded")
    assert answer.headers["retry-after"] == "3"


def test_a_time_limit_that_passes_after_the_first_line_is_the_last_line(client: TestClient, service: InProcess) -> None:
    client.post("/v1/score", json=SCORE)  # compiled, so that the first part is there in time
    service.hold_late = True
    answer = client.post("/v1/score", json=SCORE, headers={**NDJSON, "X-Request-Timeout-Ms": "400"})
    part, last = lines(answer)
    assert part["object"] == "scoring.part"
    assert (last["code"], last["error"]["code"]) == (504, "deadline_exceeded")


@pytest.mark.parametrize(
    ("error", "code"),
    [(EngineUnavailable("the engine died"), "engine_unavailable"), (ZeroDivisionError("secret"), "internal_error")],
)
def test_an_error_after_the_first_line_is_the_last_line(
    client: TestClient, service: InProcess, error: Exception, code: str
) -> None:
    service.late = error
    answer = client.post("/v1/score", json=SCORE, headers=NDJSON)
    assert answer.status_code == 200
    part, last = lines(answer)
    assert part["object"] == "scoring.part"
    assert last["object"] == "error"
    assert last["error"]["code"] == code
    assert "secret" not in answer.text
