"""Messages in the place of a rerank request's query: the library's scores, cutting, and mistakes."""

import math
from typing import Any

import pytest
from starlette.testclient import TestClient

from onepass.scorer import Scorer
from server.asking import DOCUMENTS, ask, check_error

MESSAGES = [{"role": "user", "content": "Is it about a city? {item}"}]
CONVERSATION: dict[str, Any] = {"messages": MESSAGES, "labels": [" yes", " no"]}


def test_messages_take_the_place_of_a_query(client: TestClient, tiny_scorer: Scorer) -> None:
    """In every dialect, with the library's scores; raw ones are log-odds of the first label."""
    right = tiny_scorer.rank(documents=DOCUMENTS, **CONVERSATION)
    ranked, scores = [one.index for one in right], pytest.approx([one.score for one in right], abs=1e-5)
    jina = ask(client, {**CONVERSATION, "documents": DOCUMENTS, "return_prompt": True}, "/v1/rerank")
    assert [one["index"] for one in jina["results"]] == ranked
    assert [one["relevance_score"] for one in jina["results"]] == scores
    prompt = jina["prompt"]["shared"]["text"] + jina["prompt"]["items"][0]["text"]
    assert prompt == f"<|im_start|>user\nIs it about a city? {DOCUMENTS[0]}<|im_end|>\n<|im_start|>assistant\n"
    assert [one["score"] for one in ask(client, {**CONVERSATION, "texts": DOCUMENTS})] == scores
    voyage = ask(client, {**CONVERSATION, "documents": DOCUMENTS, "top_k": 3})
    assert [one["relevance_score"] for one in voyage["data"]] == scores
    raw = ask(client, {**CONVERSATION, "documents": DOCUMENTS, "raw_scores": True})["results"]
    assert [1 / (1 + math.exp(-one["relevance_score"])) for one in raw] == scores


def test_documents_of_a_conversation_are_cut_when_asked(client: TestClient) -> None:
    long = {**CONVERSATION, "documents": ["Rome is a city. " * 300, "Rome"]}
    check_error(client.post("/rerank", json=long), 400, "too_long", "items")
    told = {one["index"]: one for one in ask(client, {**long, "truncate_prompt_tokens": -1})["results"]}
    assert told[0]["truncated"] is True
    assert "truncated" not in told[1]


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"messages": [{"role": "critic", "content": "x"}]}, "invalid_messages", "messages[0].role"),
        ({"messages": []}, "invalid_messages", "messages"),
        ({"messages": "x"}, "invalid_messages", "messages"),
        ({"messages": [{"role": "user", "content": "{item}{item}"}]}, "invalid_messages", "messages"),
        ({"query": "q"}, "conflicting_query", "query"),
        ({"messages": None}, "conflicting_labels", "labels"),
        ({"instruction": "i"}, "conflicting_instruction", "instruction"),
        ({"method": "likelihood"}, "invalid_method", "method"),
        ({"labels": "yes"}, "invalid_labels", "labels"),
        ({"labels": None}, "label_not_single_token", "labels"),
        ({"chat_template": "rerank"}, "unknown_chat_template", "chat_template"),
        ({"chat_template_kwargs": [1]}, "invalid_chat_template_kwargs", "chat_template_kwargs"),
        ({"max_tokens_per_query": 3}, "conflicting_fields", "max_tokens_per_query"),
    ],
)
def test_mistakes_in_a_conversation_have_their_codes(
    client: TestClient, change: dict[str, Any], code: str, param: str
) -> None:
    body = {**CONVERSATION, "documents": DOCUMENTS, **change}
    check_error(client.post("/rerank", json=body), 400, code, param)
