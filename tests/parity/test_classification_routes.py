"""Classes and rewards over HTTP equal `*ForSequenceClassification` of transformers, from the folders that it saved.

transformers tokenises texts, pairs and conversations itself; only texts go to the server. Needs the reference
environment; without it `server.schema.test_classification` remains. Every comparison has a control that must fail.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from onepass.scorer import Scorer
from onepass.server.app import build_app
from parity.test_rerankers import expected
from reference.cross_encoders import CONVERSATIONS, PAIRS, TEXTS, make
from server.in_process import InProcess

TOLERANCE = 1e-4
ARCHITECTURES = ("qwen3", "llama3")  # without and with a BOS


@pytest.fixture(scope="module")
def folders(
    checkpoint: Callable[[str], Path], reference_python: Path | None, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    if reference_python is None:
        pytest.skip("no reference environment: PyTorch was not cheap to install here")
    out = tmp_path_factory.mktemp("classifiers")
    make(reference_python, {name: checkpoint(name) for name in ARCHITECTURES}, out, cross_encoders=False)
    return out


@pytest.fixture(scope="module", params=[(name, labels) for name in ARCHITECTURES for labels in (1, 3)], ids=str)
def served(folders: Path, request: pytest.FixtureRequest) -> Iterator[tuple[dict[str, Any], TestClient]]:
    name, labels = request.param
    folder = folders / f"{name}-classifier-{labels}"
    with (
        Scorer.load(str(folder), dtype="float32", keep_programs=False, max_batch_tokens=256) as scorer,
        TestClient(build_app(InProcess(scorer)), raise_server_exceptions=False) as client,
    ):
        yield expected(folder)["read"], client


def posted(client: TestClient, path: str, body: dict[str, Any]) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def assert_close(ours: Any, right: Any) -> None:
    np.testing.assert_allclose(ours, right, atol=TOLERANCE)


def test_classify_equals_transformers(served: tuple[dict[str, Any], TestClient]) -> None:
    read, client = served
    body = {"input": TEXTS, "use_activation": False}
    logits = [one["probs"] for one in posted(client, "/classify", body)["data"]]
    assert_close(logits, read["texts"])
    activated = [one["probs"] for one in posted(client, "/classify", {"input": TEXTS})["data"]]
    values = np.array(read["texts"])
    several = values.shape[1] > 1
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    assert_close(activated, weights / weights.sum(axis=1, keepdims=True) if several else 1 / (1 + np.exp(-values)))
    for conversation, right in zip(CONVERSATIONS, read["conversations"], strict=False):  # none without a template
        told = posted(client, "/classify", {"messages": conversation, "use_activation": False})
        assert_close(told["data"][0]["probs"], right)
        opened = {"messages": conversation, "use_activation": False, "continue_final_message": True}
        early = np.array(posted(client, "/classify", opened)["data"][0]["probs"])
        assert np.abs(early - right).max() > 50 * TOLERANCE, "an unfinished turn is noticed"


def test_predict_equals_transformers(served: tuple[dict[str, Any], TestClient]) -> None:
    read, client = served
    labels = [f"LABEL_{number}" for number in range(len(read["texts"][0]))]

    def logits(inputs: Any) -> list[list[float]]:
        rows = posted(client, "/predict", {"inputs": inputs, "raw_scores": True})
        return [[{one["label"]: one["score"] for one in row}[label] for label in labels] for row in rows]

    assert_close(logits([[text] for text in TEXTS]), read["texts"])
    assert_close(logits(PAIRS), read["pairs"])
    turned = np.array(logits([[second, first] for first, second in PAIRS]))
    assert np.abs(turned - read["pairs"]).max() > 50 * TOLERANCE, "a pair the wrong way round is noticed"


def test_rewards_equal_transformers(served: tuple[dict[str, Any], TestClient]) -> None:
    read, client = served
    if len(read["texts"][0]) > 1:
        assert client.post("/v1/rewards", json={"input": TEXTS}).json()["error"]["code"] == "not_a_reward_model"
        return
    assert_close(posted(client, "/v1/rewards", {"input": TEXTS})["rewards"], [row[0] for row in read["texts"]])
    right = [row[0] for row in read["conversations"]]
    if not right:
        error = client.post("/v1/rewards", json={"conversations": CONVERSATIONS}).json()["error"]
        assert "chat template" in error["message"]
        return
    assert_close(posted(client, "/v1/rewards", {"conversations": CONVERSATIONS})["rewards"], right)
    messages, responses = CONVERSATIONS[0][:1], [conversation[1]["content"] for conversation in CONVERSATIONS]
    assert_close(posted(client, "/v1/rewards", {"messages": messages, "responses": responses})["rewards"], right)
    turned = posted(client, "/v1/rewards", {"messages": messages, "responses": responses[::-1]})["rewards"]
    assert np.abs(np.array(turned) - right).max() > 50 * TOLERANCE, "swapped responses are noticed"
