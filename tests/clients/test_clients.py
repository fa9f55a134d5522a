"""Other people's clients against the real server with the default model: each gets the right order in its own shape,
and what each raises for a mistake has the server's own words in it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from clients.task import ALIASES, DOCUMENTS, KEY, MODEL, QUERY

SCRIPTS = Path(__file__).with_name("scripts")
Asked = Callable[[str], dict[str, Any]]

# Every client, with how many of the five documents it asks for.
RANKERS = [
    ("openai_client", "pairs on /v1/score", 5),
    ("openai_client", "pairs on /score", 5),
    ("cohere_client", "v1", 5),
    ("cohere_client", "v1 without documents", 5),
    ("cohere_client", "v2", 3),
    ("cohere_client", "langchain", 3),
    ("voyage_client", "rerank", 5),
    ("voyage_client", "rerank with top_k", 2),
    ("litellm_client", "hosted_vllm", 3),
    ("litellm_client", "hosted_vllm with limits", 3),
    ("litellm_client", "jina_ai", 3),
    ("litellm_client", "cohere", 3),
    ("litellm_client", "infinity", 3),
    ("litellm_client", "infinity by its path", 3),
    ("litellm_client", "infinity without documents", 3),
    ("litellm_client", "huggingface", 3),
    ("llama_index_client", "tei", 3),
    ("llama_index_client", "tei with Bearer", 3),
    ("llama_index_client", "jina", 3),
    ("haystack_client", "cohere", 3),
    ("haystack_client", "jina", 3),
    ("haystack_client", "tei", 3),
]
LABELLERS = [("openai_client", "labels on /v1/score"), ("openai_client", "labels on /score")]
CLIENTS = [(script, name) for script, name, _ in RANKERS] + LABELLERS
MESSAGES = {
    "empty_query": "must not be empty; got",
    "unknown_model": "this server has a model under the names 'smollm2-135m', 'rerank-v3.5', "
    "'jina-reranker-v2-base-multilingual'; got 'no-such-model'",
    "wrong_key": "an API key is required: Authorization: Bearer …, X-API-Key or api-key; got none that is known",
}
NAMES_NO_MODEL = {  # Text Embeddings Inference has one model, and its clients do not say which
    ("litellm_client", "huggingface"),
    ("llama_index_client", "tei"),
    ("llama_index_client", "tei with Bearer"),
    ("haystack_client", "tei"),
}
READS_NO_ERROR = {("llama_index_client", "tei"), ("llama_index_client", "tei with Bearer")}
# litellm looks up a Hugging Face model's length there, whatever the server; it is stopped, and goes on without.
REACHES_FOR = {"litellm_client": {"huggingface.co"}}


@pytest.fixture(scope="session")
def expected(keyed_url: str) -> list[tuple[int, float]]:
    """What plain HTTP gets, and the right document first."""
    body = {"query": QUERY, "documents": DOCUMENTS}
    answer = httpx2.post(f"{keyed_url}/rerank", json=body, headers={"Authorization": f"Bearer {KEY}"}, timeout=60)
    ranked = [(one["index"], one["relevance_score"]) for one in answer.json()["results"]]
    assert sorted(index for index, _ in ranked) == list(range(len(DOCUMENTS)))
    assert DOCUMENTS[ranked[0][0]].startswith("Yeast")
    return ranked


@pytest.mark.parametrize(("script", "client", "count"), RANKERS)
def test_a_client_gets_the_right_order(
    asked: Asked, expected: list[tuple[int, float]], script: str, client: str, count: int
) -> None:
    answer = answer_of(asked, script, client, "right")
    assert [index for index, _ in answer["ranked"]] == [index for index, _ in expected[:count]]
    assert [score for _, score in answer["ranked"]] == pytest.approx([score for _, score in expected[:count]], rel=1e-3)
    told = [text for text in answer.get("documents", []) if text is not None]
    assert told in ([], [DOCUMENTS[index] for index, _ in expected[:count]])


@pytest.mark.parametrize(("script", "client"), LABELLERS)
def test_openai_gets_the_labels_probabilities(asked: Asked, script: str, client: str) -> None:
    answer = answer_of(asked, script, client, "right")
    assert [index for index, _ in answer["ranked"]][:2] == [1, 3], "the two kind reviews"
    assert answer["raw"]["object"] == "scoring"
    assert all(sum(row) == pytest.approx(1) for row in answer["raw"]["scores"])


def test_what_clients_tell_beside_the_order_is_there(asked: Asked) -> None:
    first = answer_of(asked, "cohere_client", "v1", "right")
    assert first["id"].startswith("rerank-")
    assert first["search_units"] == 1
    assert first["documents"][0].startswith("Yeast")
    assert answer_of(asked, "voyage_client", "rerank", "right")["total_tokens"] > len(DOCUMENTS)
    silent = answer_of(asked, "cohere_client", "v1 without documents", "right")
    assert silent["documents"] == [None] * 5, "Cohere's default"
    for provider in ("hosted_vllm", "jina_ai", "infinity", "infinity by its path"):
        told = answer_of(asked, "litellm_client", provider, "right")
        assert told["meta"]["billed_units"]["total_tokens"] > len(DOCUMENTS), provider
        assert told["documents"][0].startswith("Yeast"), provider
    pairs = answer_of(asked, "openai_client", "pairs on /score", "right")["raw"]
    assert pairs["object"] == "list"
    assert [one["index"] for one in pairs["data"]] == list(range(len(DOCUMENTS)))


@pytest.mark.parametrize("name", [MODEL, *ALIASES, "default"])
def test_every_served_name_is_answered(keyed_url: str, name: str) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS[:2], "model": name}
    answer = httpx2.post(f"{keyed_url}/v1/rerank", json=body, headers={"Authorization": f"Bearer {KEY}"}, timeout=60)
    assert (answer.status_code, answer.json()["model"]) == (200, name)


def test_openai_lists_every_served_name(asked: Asked) -> None:
    assert asked("openai_client")["models"] == [MODEL, *ALIASES]


@pytest.mark.parametrize("mistake", MESSAGES)
@pytest.mark.parametrize(("script", "client"), CLIENTS)
def test_a_client_raises_the_servers_own_words(asked: Asked, script: str, client: str, mistake: str) -> None:
    tried = asked(script)["clients"][client][mistake]
    if mistake == "unknown_model" and (script, client) in NAMES_NO_MODEL:
        assert "answer" in tried, "it names no model, and so cannot be wrong about it"
    elif (script, client) in READS_NO_ERROR:
        assert "AssertionError" in tried["raised"], "this client reads no status and no error, of any server"
    else:
        assert MESSAGES[mistake] in tried["raised"].replace('\\"', '"')


@pytest.mark.parametrize("script", sorted({script for script, _ in CLIENTS}))
def test_no_client_reaches_beyond_this_machine(asked: Asked, script: str) -> None:
    assert set(asked(script)["reached_for"]) <= REACHES_FOR.get(script, set())


def test_every_script_is_tried() -> None:
    assert {path.stem for path in SCRIPTS.glob("*_client.py")} == {script for script, _ in CLIENTS}


def answer_of(asked: Asked, script: str, client: str, attempt: str) -> dict[str, Any]:
    tried: dict[str, Any] = asked(script)["clients"][client][attempt]
    assert "answer" in tried, tried["traceback"]
    answer: dict[str, Any] = tried["answer"]
    return answer
