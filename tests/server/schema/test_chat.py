"""`protocol` over HTTP: the library's scores, the prompt on request, and mistakes as 400."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from onepass.api import ChatOptions
from onepass.scorer import Scorer
from server.asking import check_error

MESSAGES = [{"role": "system", "content": "Judge."}, {"role": "user", "content": "Is this relevant? "}]
CHAT: dict[str, Any] = {"messages": MESSAGES, "items": ["The quick fox", "Paris"], "labels": [" yes", " no"]}


def test_messages_give_the_librarys_scores_and_prompt(client: TestClient, tiny_scorer: Scorer) -> None:
    answer = client.post("/v1/score", json={**CHAT, "return_prompt": True})
    assert answer.status_code == 200, answer.text
    right = tiny_scorer.score(**CHAT, return_prompt=True)
    for ours, theirs in zip(answer.json()["scores"], right.scores, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert right.prompt is not None
    assert answer.json()["prompt"] == right.prompt.to_dict()
    assert "prompt" not in client.post("/v1/score", json=CHAT).json()


def test_the_fields_have_the_names_that_vllm_and_transformers_use(client: TestClient, tiny_scorer: Scorer) -> None:
    given = {"item_role": "assistant", "chat_template_kwargs": {"enable_thinking": False}}
    answer = client.post("/v1/score", json={**CHAT, **given, "return_prompt": True}).json()
    chat = ChatOptions(item_role="assistant", template_kwargs={"enable_thinking": False})
    assert chat.to_fields() == given
    right = tiny_scorer.score(**CHAT, chat=chat, return_prompt=True)
    assert right.prompt is not None
    assert answer["prompt"] == right.prompt.to_dict()
    assert answer["prompt"]["items"][1]["text"].endswith("Paris")


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"messages": [{"role": "critic", "content": "x"}]}, "invalid_messages", "messages[0].role"),
        ({"messages": "x"}, "invalid_messages", "messages"),
        ({"messages": []}, "invalid_messages", "messages"),
        ({"query": "x"}, "conflicting_query", "query"),
        ({"context_id": "x"}, None, None),
        ({"item_role": "judge"}, "invalid_messages", "item_role"),
        ({"chat_template": "rerank"}, "unknown_chat_template", "chat_template"),
        ({"chat_template": 7}, "invalid_chat_template", "chat_template"),
        ({"chat_template_kwargs": [1]}, "invalid_chat_template_kwargs", "chat_template_kwargs"),
        ({"add_generation_prompt": "yes"}, "invalid_add_generation_prompt", "add_generation_prompt"),
        ({"return_prompt": 1}, "invalid_return_prompt", "return_prompt"),
        ({"items": [[1, 2]]}, "invalid_items_type", "items"),
    ],
)
def test_mistakes_in_messages_are_said(
    client: TestClient, change: dict[str, Any], code: str | None, param: str | None
) -> None:
    answer = client.post("/v1/score", json={**CHAT, **change})
    check_error(answer, 404 if "context_id" in change else 400, code, param)
