"""vLLM's `/generative_scoring`: the score of the first label, softmax unless refused."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from onepass.scorer import Scorer
from server.asking import SCORE, check_error

BODY: dict[str, Any] = {"query": SCORE["query"], "items": SCORE["items"], "label_token_ids": [5, 6]}


@pytest.mark.parametrize("soft", [None, True, False])
def test_the_score_is_that_of_the_first_label(client: TestClient, tiny_scorer: Scorer, soft: bool | None) -> None:
    body = BODY if soft is None else {**BODY, "apply_softmax": soft}
    told = client.post("/generative_scoring", json=body, headers={"X-Request-Id": "abc"}).json()
    assert told.keys() == {"id", "object", "created", "model", "data", "usage"}
    assert (told["id"], told["object"], told["model"]) == ("generative-scoring-abc", "list", "qwen3")
    right = tiny_scorer.score(**BODY, apply_softmax=soft is not False)
    assert [one["score"] for one in told["data"]] == [row[0] for row in right.scores]
    usage = told["usage"]
    assert (usage["completion_tokens"], usage["prompt_tokens"]) == (3, right.usage.prompt_tokens), "one per item"
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert [(one["index"], one["object"]) for one in told["data"]] == [(0, "score"), (1, "score"), (2, "score")]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"items": []}, "missing_items"),
        ({"label_token_ids": []}, "empty_label_token_ids"),
        ({"label_token_ids": None}, "missing_labels"),
        ({"label_token_ids": [10**7]}, "token_id_exceeds_vocab"),
        ({"add_special_tokens": False}, "unsupported_field"),
        ({"apply_softmax": "yes"}, "invalid_apply_softmax"),
        ({"labels": [" yes"]}, "unknown_field"),
    ],
)
def test_mistakes_have_their_codes(client: TestClient, change: dict[str, Any], code: str) -> None:
    check_error(client.post("/generative_scoring", json={**BODY, **change}), 400, code)
