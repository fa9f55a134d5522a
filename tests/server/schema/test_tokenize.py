"""`/tokenize` and `/detokenize`: the tokens that scoring sees, and back."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from onepass.scorer import Scorer
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
