"""openai 3, typesafe-sdk, pydantic-ai and litellm, unmodified, ask the real server typed questions."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from clients.build_env import DECISION_CLIENTS
from clients.conftest import run_script
from clients.task import KEY, MODEL
from virtual_environments import require

STATE = "My card was charged twice for one order!"


def run(python: Path, script: str, url: str) -> dict[str, Any]:
    task = {"url": url, "key": KEY, "model": MODEL, "state": STATE}
    report = run_script(python, script, task)
    assert set(report["reached_for"]) <= {"huggingface.co"}
    calls: dict[str, Any] = report["calls"]
    return calls


@pytest.fixture(scope="module")
def calls(keyed_url: str) -> dict[str, Any]:
    return run(require(DECISION_CLIENTS), "decisions.py", keyed_url)


@pytest.fixture(scope="module")
def litellm_calls(clients_python: Path, keyed_url: str) -> dict[str, Any]:
    return run(clients_python, "litellm_decisions.py", keyed_url)


@pytest.fixture(scope="module")
def expected(keyed_url: str) -> dict[str, Any]:
    """Our own form of the same questions, by plain HTTP."""
    body = {
        "state": STATE,
        "questions": [
            {"type": "predicate", "instructions": "Is this urgent?"},
            {
                "type": "choice",
                "instructions": "Which team should handle it?",
                "choices": [{"value": "billing", "description": "payments"}, "shipping", True],
            },
            {"type": "score", "instructions": "How upset?", "levels": ["calm", "furious"]},
        ],
    }
    headers = {"Authorization": f"Bearer {KEY}"}
    urgent, team, tone = httpx2.post(f"{keyed_url}/v1/decisions", json=body, headers=headers, timeout=120).json()[
        "answers"
    ]
    return {
        "urgent": urgent["probability"],
        "team": [one["probability"] for one in team["probabilities"]],
        "tone": tone["score"],
    }


@pytest.mark.parametrize("call", ["openai", "openai async"])
def test_openai_gets_every_type(calls: dict[str, Any], expected: dict[str, Any], call: str) -> None:
    urgent, team, tone = calls[call]["answer"]["answers"]
    assert urgent["probability"] == pytest.approx(expected["urgent"], abs=1e-4)
    assert [one["value"] for one in team["probabilities"]] == ["billing", "shipping", True]
    assert [one["probability"] for one in team["probabilities"]] == pytest.approx(expected["team"], abs=1e-4)
    assert tone["score"] == pytest.approx(expected["tone"], abs=1e-4)


def test_openai_sends_messages(calls: dict[str, Any]) -> None:
    assert len(calls["openai messages"]["answer"]["answers"]) == 3


def test_typesafe_and_pydantic_ai_get_their_answers(calls: dict[str, Any], expected: dict[str, Any]) -> None:
    answers = calls["typesafe"]["answer"]["answers"]
    assert answers["urgent"]["noul"] == pytest.approx(expected["urgent"], abs=1e-4)
    assert list(answers["team"]["probabilities"].values()) == pytest.approx(expected["team"], abs=1e-4)
    assert answers["tone"]["legend"] == {"0": "calm", "1": "furious"}
    assert "answer" in calls["typesafe object"]
    assert calls["typesafe models"]["answer"][0] == MODEL
    for call in ("pydantic-ai", "pydantic-ai with /v1"):
        ticket = calls[call]["answer"]
        assert isinstance(ticket["urgent"], bool)
        assert ticket["team"] in ("billing", "shipping")
        assert 0 <= ticket["odds"] <= 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("openai image", "images and other media are not supported"),
        ("openai bad body", "questions[0].choices must be a list of 2 to 255"),
        ("openai unknown model", "got 'gpt-6-luna'"),
        ("typesafe bad body", "422 state must not be empty"),
    ],
)
def test_a_client_raises_the_servers_own_words(calls: dict[str, Any], call: str, words: str) -> None:
    assert words in calls[call]["raised"]


def test_litellm_gets_both_forms(litellm_calls: dict[str, Any], expected: dict[str, Any]) -> None:
    assert "answer" in litellm_calls["decisions"], litellm_calls["decisions"]
    urgent, team = litellm_calls["decisions"]["answer"]["answers"]
    assert urgent["probability"] == pytest.approx(expected["urgent"], abs=1e-4)
    assert [one["probability"] for one in team["probabilities"]] == pytest.approx(expected["team"], abs=1e-4)
    assert "answer" in litellm_calls["systemone"], litellm_calls["systemone"]
    assert "input must not be empty" in litellm_calls["bad body"]["raised"]
