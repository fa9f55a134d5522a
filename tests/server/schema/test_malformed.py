"""Whatever comes in any member of any body: never a 5xx, never a hang, always the one shape of errors."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from onepass.server.routes.table import OPERATIONS
from onepass.server.schema import (
    completions,
    contexts,
    generative,
    nvidia,
    pair_score,
    rerank,
    tei,
    tokenize,
    voyage,
)
from onepass.server.schema.classification import classify, predict, rewards
from onepass.server.schema.decisions import native as decisions
from onepass.server.schema.decisions import openai as openai_decisions
from onepass.server.schema.decisions import sglang as sglang_decisions
from onepass.server.schema.decisions import systemone
from onepass.server.schema.scoring import modes, score
from server.asking import DOCUMENTS, RERANK, SCORE, check_error
from server.in_process import InProcess
from server.schema.test_decisions import OPENAI, OWN, SGLANG, SYSTEMONE

SOUND: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "score": ("/v1/score", SCORE, score.BODY),
    "pairs": ("/score", {"text_1": "the sea", "text_2": DOCUMENTS}, pair_score.BODY),
    "generative": ("/generative_scoring", {"query": [1], "items": [[2]], "label_token_ids": [3]}, generative.BODY),
    "jina": ("/rerank", RERANK, rerank.BODY),
    "voyage": ("/v1/rerank", {**RERANK, "top_k": 2}, voyage.BODY),
    "tei": ("/rerank", {"query": "the sea", "texts": DOCUMENTS}, tei.BODY),
    "nvidia": ("/v1/ranking", {"query": {"text": "sea"}, "passages": [{"text": "land"}]}, nvidia.BODY),
    "completions": (
        "/v1/completions",
        {"prompt": "the sea", "echo": True, "logprobs": 1, "max_tokens": 0},
        completions.BODY,
    ),
    "classify": ("/classify", {"input": DOCUMENTS, "labels": [" yes", " no"]}, classify.BODY),
    "predict": ("/predict", {"inputs": [["the sea"]], "labels": [" yes", " no"]}, predict.BODY),
    "rewards": ("/v1/rewards", {"input": DOCUMENTS, "labels": [" yes", " no"]}, rewards.BODY),
    "pooling": ("/pooling", {"input": "the sea", "labels": [" yes", " no"]}, classify.POOLING_BODY),
    "get_reward": ("/get_reward", {"query": DOCUMENTS, "prompts": DOCUMENTS, "labels": [None]}, rewards.OPENRLHF_BODY),
    "openai decisions": ("/v1/decisions", OPENAI, openai_decisions.BODY),
    "sglang decisions": ("/v1/decisions", SGLANG, sglang_decisions.BODY),
    "systemone": ("/v1/systemone", SYSTEMONE, systemone.BODY),
    "decisions": ("/v1/decisions", OWN, decisions.BODY),
    "modes": ("/v1/modes", SCORE, modes.BODY),
    "contexts": ("/v1/contexts", {"query": "the sea"}, contexts.BODY),
    "tokenize": ("/tokenize", {"prompt": "the sea"}, tokenize.BODY),
    "detokenize": ("/detokenize", {"tokens": [1, 2]}, tokenize.DETOKENIZE_BODY),
}
WORDS = st.sampled_from(["", "the sea", " yes", "auto", "right", "END", "default", "ctx-1", "\x00", "é" * 50, "😀 東"])
NUMBERS = st.sampled_from(
    [0, 1, -1, 2, 3, 1.0, 0.5, -0.0, 599, 600, 10**6, 2**31, 2**63, -(2**63), 2**64, 1e300, 1e-300]
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, WORDS, st.text(max_size=5))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["text", "title", "a", ""]), inner, max_size=2),
    ),
    max_leaves=8,
)


def test_every_body_of_the_table_is_tried() -> None:
    tried = {id(schema) for _, _, schema in SOUND.values()}
    assert {id(body) for operation in OPERATIONS for body in operation.bodies} <= tried


@pytest.mark.parametrize("name", SOUND)
def test_the_sound_bodies_are_sound(client: TestClient, service: InProcess, name: str) -> None:
    """Else every change of them would be refused for the same reason."""
    service.check_only = True
    path, body, _ = SOUND[name]
    answer = client.post(path, json=body)
    if name == "get_reward":  # its body has no place for labels, and this model no reward
        check_error(answer, 400, "no_classes")
        return
    assert answer.status_code == (200 if "token" in name else 429)
    if answer.status_code == 429:
        check_clean(answer)


@pytest.mark.parametrize("name", SOUND)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_in_any_member_gets_a_clean_answer(
    client: TestClient, service: InProcess, name: str, data: st.DataObject
) -> None:
    service.check_only = True
    path, sound, schema = SOUND[name]
    members = st.sampled_from([*schema["properties"], *schema["properties"], "nonsense"])
    changes = data.draw(st.dictionaries(members, VALUES, min_size=1, max_size=3))
    dropped = data.draw(st.sets(st.sampled_from([*sound]), max_size=1))
    body = {key: value for key, value in {**sound, **changes}.items() if key not in dropped}
    headers = data.draw(st.sampled_from([{}, {"Accept": "application/x-ndjson"}, {"X-Compat": "sglang"}]))
    answer = client.post(path, json=body, headers=headers)
    assert answer.status_code in (200, 400, 404, 422, 429), answer.text
    if answer.status_code != 200:
        check_clean(answer)


def check_clean(answer: Any) -> None:
    """The one shape of errors, or that of a dialect which has its own: TEI's, and System One's lists of places."""
    body = answer.json()
    if isinstance(body["error"], str):
        assert body.keys() == {"error", "error_type", "code", "param"}
        assert body["error"]
        assert body["error_type"]
    elif answer.status_code == 422:
        assert body["error"]["message"] == body["message"] != ""
        assert all(place.keys() >= {"loc", "msg", "type"} for place in body["detail"])
    else:
        check_error(answer, answer.status_code)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.one_of(st.binary(max_size=40), VALUES.map(lambda value: repr(value).encode("utf-8", "replace"))))
def test_any_bytes_get_a_clean_answer(client: TestClient, service: InProcess, body: bytes) -> None:
    service.check_only = True
    for path in ("/v1/score", "/rerank"):
        check_error(client.post(path, content=body), 400)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(
        ["content-type", "content-encoding", "x-request-timeout-ms", "x-priority", "x-request-id", "authorization"]
    ),
    value=st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=20),
)
def test_any_header_gets_a_clean_answer(client: TestClient, service: InProcess, name: str, value: str) -> None:
    service.check_only = True
    answer = client.post("/v1/score", json=SCORE, headers={name.encode(): value.encode("latin-1")})
    assert answer.status_code in (400, 415, 429, 504), answer.text
    check_error(answer, answer.status_code)
