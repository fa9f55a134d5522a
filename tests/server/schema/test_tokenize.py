"""`/tokenize` and `/detokenize`: the tokens that scoring sees, and back."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from onepass.scorer import Scorer
from onepass.server.schema import tokenize
from server.asking import check_error

TEXT = "The capital of France is Paris."


def test_tokens_are_those_that_scoring_sees(client: TestClient, tiny_scorer: Scorer) -> None:
    told = client.post("/tokenize", json={"prompt": TEXT, "return_token_strs": True}).json()
    assert told["tokens"] == tiny_scorer.tokenizer.encode_query(TEXT)
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    assert "".join(told["token_strs"]) == TEXT
    assert told["max_model_len"] == 1024
    item = client.post("/tokenize", json={"text": TEXT, "add_special_tokens": False}).json()
    assert item["tokens"] == tiny_scorer.tokenizer.encode_item(TEXT)
    assert item["token_strs"] is None


def test_several_texts_at_once(client: TestClient) -> None:
    told = client.post("/tokenize", json={"prompt": [TEXT, "", "Rome"]}).json()
    assert told["count"] == [len(row) for row in told["tokens"]]
    assert told["count"][1] == 0


def test_tokens_become_text_again(client: TestClient) -> None:
    tokens = client.post("/tokenize", json={"prompt": TEXT}).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": TEXT, "text": TEXT}
    assert client.post("/detokenize", json={"tokens": [tokens, []]}).json()["text"] == [TEXT, ""]
    assert client.post("/detokenize", json={"tokens": []}).json()["text"] == ""


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/tokenize", {}, "missing_prompt"),
        ("/tokenize", {"prompt": 5}, "invalid_prompt"),
        ("/tokenize", {"prompt": ["a", 5]}, "invalid_prompt"),
        ("/tokenize", {"prompt": "a", "text": "b"}, "conflicting_fields"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "invalid_add_special_tokens"),
        ("/detokenize", {"tokens": "abc"}, "invalid_tokens"),
        ("/detokenize", {"tokens": [True]}, "invalid_token_id_type"),
        ("/detokenize", {"tokens": [-1]}, "token_id_out_of_range"),
        ("/detokenize", {"tokens": [10**9]}, "token_id_out_of_range"),
        ("/detokenize", {"tokens": [[1], 2]}, "invalid_token_id_type"),
    ],
)
def test_mistakes_have_their_codes(client: TestClient, path: str, body: dict[str, Any], code: str) -> None:
    check_error(client.post(path, json=body), 400, code)


def test_long_texts_are_counted_up_to_twice_the_limit_and_then_refused(client: TestClient) -> None:
    counted = client.post("/tokenize", json={"prompt": "word " * 400}).json()["count"]
    assert counted > 1024, "one that the model cannot take can still be counted"
    for body in ({"prompt": "word " * 100_000}, {"prompt": ["a", "a" * 2_000_000], "add_special_tokens": False}):
        error = check_error(client.post("/tokenize", json=body), 400, "too_long", "prompt")
        assert "the limit is 2,048" in error["message"]
    check_error(client.post("/detokenize", json={"tokens": [5] * 2049}), 400, "too_long", "tokens")
    assert len(client.post("/detokenize", json={"tokens": [[5] * 2048]}).json()["text"]) == 1


def test_many_texts_together_are_bounded(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenize, "MAX_TOKENS", 10)
    check_error(client.post("/tokenize", json={"prompt": ["the sea"] * 20}), 400, "too_long", "prompt")
    check_error(client.post("/detokenize", json={"tokens": [[5]] * 11}), 400, "too_long", "tokens")
