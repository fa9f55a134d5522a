"""`/classify`, `/predict`, `/pooling`, `/v1/rewards`, `/get_reward`: heads, labels, limits, and who is refused."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from starlette.testclient import TestClient

from onepass.scorer import Scorer
from onepass.server.app import build_app
from server.asking import DOCUMENTS, check_error, check_tei_error
from server.in_process import InProcess

TEXTS = ["The quick fox", "a river bank of the sea", "Paris"]
YES_NO = [" yes", " no"]
OPTIONS = {"dtype": "float32", "keep_programs": False, "max_batch_tokens": 256, "cache_bytes": 1 << 24}
Serve = Callable[..., tuple[Scorer, TestClient]]


@pytest.fixture(scope="module")
def serve(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """`serve("a", "b")`: a model with these classes, and a client of its application; each is made once."""
    made: dict[tuple[str, ...], tuple[Scorer, TestClient]] = {}

    def get(*classes: str, problem_type: str | None = None) -> tuple[Scorer, TestClient]:
        if classes not in made:
            folder = Path(shutil.copytree(checkpoint("qwen3-untied"), tmp_path_factory.mktemp("head") / "model"))
            tensors = load_file(folder / "model.safetensors")
            tensors["score.weight"] = tensors.pop("lm_head.weight")[5 : 5 + len(classes)].copy()
            save_file(tensors, folder / "model.safetensors")
            config = json.loads((folder / "config.json").read_text())
            config |= {"architectures": ["Qwen3ForSequenceClassification"], "problem_type": problem_type}
            config["id2label"] = {str(number): name for number, name in enumerate(classes)}
            (folder / "config.json").write_text(json.dumps(config))
            scorer = Scorer.load(str(folder), **OPTIONS)
            made[classes] = scorer, TestClient(build_app(InProcess(scorer)), raise_server_exceptions=False)
        return made[classes]

    yield get
    for scorer, client in made.values():
        client.close()
        scorer.close()


def softmax(logits: Any) -> np.ndarray:
    weights = np.exp(np.array(logits) - np.max(logits, axis=-1, keepdims=True))
    return np.array(weights / weights.sum(axis=-1, keepdims=True))


def read(scorer: Scorer, texts: list[str]) -> np.ndarray:
    """Logits after each text alone."""
    return np.array([scorer.score(text, [""], mode="serial").logits[0] for text in texts])


def posted(client: TestClient, path: str, body: dict[str, Any]) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_classify_answers_as_vllm(serve: Serve) -> None:
    scorer, client = serve("a", "b", "c")
    logits = read(scorer, TEXTS)
    told = posted(client, "/classify", {"input": TEXTS, "model": "default"})
    assert told.keys() == {"id", "object", "created", "model", "data", "usage"}
    assert told["id"].startswith("classify-")
    assert [one["index"] for one in told["data"]] == [0, 1, 2]
    assert {one["num_classes"] for one in told["data"]} == {3}
    np.testing.assert_allclose([one["probs"] for one in told["data"]], softmax(logits), atol=1e-5)
    assert [one["label"] for one in told["data"]] == ["abc"[n] for n in logits.argmax(axis=1)]
    raw = posted(client, "/v1/classify", {"input": TEXTS, "use_activation": False})
    np.testing.assert_allclose([one["probs"] for one in raw["data"]], logits, atol=1e-4)
    ids = [scorer.tokenizer.encode_query(text) for text in TEXTS]
    assert posted(client, "/classify", {"input": ids})["data"] == told["data"]
    single = posted(client, "/classify", {"input": ids[0]})["data"]
    np.testing.assert_allclose(single[0]["probs"], told["data"][0]["probs"], atol=1e-5)
    pooled = posted(client, "/pooling", {"input": TEXTS, "task": "classify"})
    np.testing.assert_allclose([one["data"] for one in pooled["data"]], softmax(logits), atol=1e-5)


def test_texts_that_begin_alike_are_computed_once_and_read_the_same(serve: Serve) -> None:
    scorer, client = serve("a", "b", "c")
    beginning = "A user liked the film about a space ship; will the same user like the next film?"
    texts = [beginning, "The sea", f"{beginning} yes", f"{beginning} no", beginning]
    told = posted(client, "/classify", {"input": texts, "use_activation": False})
    np.testing.assert_allclose([one["probs"] for one in told["data"]], read(scorer, texts), atol=1e-4)
    alone = sum(posted(client, "/tokenize", {"prompt": texts})["count"])
    assert told["usage"]["prompt_tokens"] < 0.6 * alone


def test_a_conversation_is_classified_as_it_was_finished(serve: Serve) -> None:
    scorer, client = serve("a", "b", "c")
    messages = [{"role": "user", "content": "Is {item} good?"}, {"role": "assistant", "content": "yes"}]
    text = "<|im_start|>user\nIs {item} good?<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
    told = posted(client, "/classify", {"messages": messages, "use_activation": False})["data"][0]["probs"]
    ids = scorer.tokenizer.encode_item(text)
    np.testing.assert_allclose(told, scorer.score(ids[:1], [ids[1:]], mode="serial").logits[0], atol=1e-4)
    left_open = {"messages": messages, "use_activation": False, "continue_final_message": True}
    ids = scorer.tokenizer.encode_item(text.removesuffix("<|im_end|>\n"))
    told = posted(client, "/classify", left_open)["data"][0]["probs"]
    np.testing.assert_allclose(told, scorer.score(ids[:1], [ids[1:]], mode="serial").logits[0], atol=1e-4)


def test_predict_answers_as_tei(serve: Serve) -> None:
    scorer, client = serve("a", "b", "c")
    logits = read(scorer, TEXTS)
    single = posted(client, "/predict", {"inputs": TEXTS[0]})
    assert [one["score"] for one in single] == pytest.approx(sorted(softmax(logits[0]), reverse=True), abs=1e-5)
    assert [one["label"] for one in single] == ["abc"[n] for n in np.argsort(-logits[0])]
    batch = posted(client, "/predict", {"inputs": [[text] for text in TEXTS], "raw_scores": True})
    for row, right in zip(batch, logits, strict=True):
        assert {one["label"]: one["score"] for one in row} == pytest.approx(
            dict(zip("abc", right, strict=True)), abs=1e-4
        )
    pair = posted(client, "/predict", {"inputs": ["The quick", " fox"], "raw_scores": True})
    joined = scorer.tokenizer.encode_pair("The quick", " fox")
    right = scorer.score(joined[:1], [joined[1:]], mode="serial").logits[0]
    assert {one["label"]: one["score"] for one in pair} == pytest.approx(dict(zip("abc", right, strict=True)), abs=1e-4)
    mixed = posted(client, "/predict", {"inputs": [["The quick", " fox"], [TEXTS[0]]], "raw_scores": True})
    assert [one["label"] for one in mixed[0]] == [one["label"] for one in pair]


@pytest.mark.parametrize("side", ["right", "left"])
def test_texts_are_cut_only_when_asked(serve: Serve, side: str) -> None:
    scorer, client = serve("a", "b", "c")
    long = "a river bank of the sea " * 400
    check_tei_error(client.post("/predict", json={"inputs": long}), 400, "Validation", "too_long")
    cut = posted(client, "/predict", {"inputs": long, "truncate": True, "truncation_direction": side})
    assert all(one["truncated"] for one in cut)
    ids = scorer.tokenizer.encode_query(TEXTS[1])
    kept = ids[:3] if side == "right" else ids[-3:]
    body = {"input": TEXTS[1], "truncate_prompt_tokens": 3, "truncation_side": side, "use_activation": False}
    told = posted(client, "/classify", body)["data"][0]
    assert told["truncated"] is True
    np.testing.assert_allclose(told["probs"], scorer.score(kept[:1], [kept[1:]]).logits[0], atol=1e-4)
    assert "truncated" not in posted(client, "/classify", {**body, "truncate_prompt_tokens": 99})["data"][0]


def test_rewards_are_raw_and_their_responses_share_the_prompt(serve: Serve) -> None:
    scorer, client = serve("reward")
    responses = [" yes of course", "no", "no"]
    messages = [{"role": "system", "content": "The price of the shoes."}, {"role": "user", "content": "Is it high?"}]
    texts = [
        "<|im_start|>system\nThe price of the shoes.<|im_end|>\n<|im_start|>user\nIs it high?<|im_end|>\n"
        f"<|im_start|>assistant\n{text}<|im_end|>\n"
        for text in responses
    ]
    ids = [scorer.tokenizer.encode_item(text) for text in texts]
    right = [scorer.score(one[:1], [one[1:]], mode="serial").logits[0][0] for one in ids]
    told = posted(client, "/v1/rewards", {"messages": messages, "responses": responses})
    assert told["rewards"] == pytest.approx(right, abs=1e-4)
    assert told["object"] == "rewards"
    assert told["usage"]["prompt_tokens"] < sum(map(len, ids))
    finished = [[*messages, {"role": "assistant", "content": text}] for text in responses]
    assert posted(client, "/v1/rewards", {"conversations": finished})["rewards"] == pytest.approx(right, abs=1e-4)
    trained = posted(client, "/get_reward", {"query": texts, "prompts": ["p"] * 3, "labels": [None] * 3})
    assert trained.keys() == {"rewards", "scores", "extra_logs"}
    assert trained["rewards"] == trained["scores"] == pytest.approx(right, abs=1e-4)
    single = posted(client, "/predict", {"inputs": texts[0]})[0]["score"]
    assert 0 < single < 1, "TEI and vLLM give a single class a sigmoid"
    asked = posted(client, "/v1/rewards", {"prompt": "Is it high?", "responses": ["no"]})["rewards"]
    assert asked != pytest.approx(right[1:2], abs=1e-3), "another prompt, another reward"


def test_a_reward_needs_a_single_class_or_one_that_means_yes(serve: Serve) -> None:
    _, several = serve("a", "b", "c")
    error = check_error(several.post("/get_reward", json={"query": TEXTS}), 400, "not_a_reward_model", "model")
    assert "a, b, c" in error["message"]
    scorer, client = serve("no", "yes")
    rewards = posted(client, "/v1/rewards", {"input": TEXTS})["rewards"]
    assert rewards == pytest.approx(read(scorer, TEXTS)[:, 1].tolist(), abs=1e-4)


def test_a_language_model_reads_its_own_labels_or_those_of_the_request(
    client: TestClient, label_client: TestClient, tiny_scorer: Scorer
) -> None:
    right = tiny_scorer.score(TEXTS[0], [""], YES_NO, apply_softmax=True)
    asked = posted(client, "/classify", {"input": TEXTS[0], "labels": YES_NO})["data"][0]
    assert asked["probs"] == pytest.approx(right.scores[0], abs=1e-5)
    own = posted(label_client, "/classify", {"input": TEXTS[0]})["data"][0]
    assert own["probs"] == pytest.approx(right.scores[0], abs=1e-5)
    assert own["label"] in YES_NO
    odds = right.logits[0][0] - right.logits[0][1]
    assert posted(label_client, "/get_reward", {"query": [TEXTS[0]]})["rewards"] == pytest.approx([odds], abs=1e-4)
    pair = posted(label_client, "/predict", {"inputs": ["the capital of Italy", DOCUMENTS[0]]})
    score = posted(label_client, "/rerank", {"query": "the capital of Italy", "texts": DOCUMENTS[:1]})[0]["score"]
    assert {one["label"]: one["score"] for one in pair}[" yes"] == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("path", ["/classify", "/v1/rewards", "/pooling"])
def test_a_model_without_classes_is_refused(client: TestClient, path: str) -> None:
    error = check_error(client.post(path, json={"input": TEXTS}), 400, "no_classes", "labels")
    assert "no classification head" in error["message"]
    check_tei_error(client.post("/predict", json={"inputs": "a"}), 400, "Validation", "no_classes")


@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        ("/classify", {}, "missing_input", "input"),
        ("/classify", {"input": []}, "empty_input", "input"),
        ("/classify", {"input": ["a", [1]]}, "invalid_input", "input"),
        ("/classify", {"input": "a", "messages": []}, "conflicting_fields", "messages"),
        ("/classify", {"input": [[1, 10**6]]}, "token_id_out_of_range", "input[0]"),
        ("/classify", {"input": ["a", ""]}, "empty_prompt", "input[1]"),
        ("/classify", {"input": "a", "labels": ["x"]}, "conflicting_labels", "labels"),
        ("/classify", {"messages": [{"role": "judge", "content": "a"}]}, "invalid_messages", "messages[0].role"),
        ("/classify", {"input": "a", "truncate_prompt_tokens": 0}, "invalid_truncate_prompt_tokens", None),
        ("/pooling", {"input": "a", "task": "embed"}, "invalid_task", "task"),
        ("/pooling", {"input": "a", "encoding_format": "base64"}, "invalid_encoding_format", "encoding_format"),
        ("/v1/rewards", {"prompt": "a"}, "invalid_responses", "responses"),
        ("/v1/rewards", {"input": "a", "responses": ["b"]}, "conflicting_fields", "responses"),
        ("/v1/rewards", {"conversations": "a"}, "invalid_conversations", "conversations"),
        ("/get_reward", {"query": [3]}, "invalid_query_type", "query"),
        ("/get_reward", {}, "invalid_query_type", "query"),
    ],
)
def test_mistakes_have_their_codes(serve: Serve, path: str, body: dict[str, Any], code: str, param: str | None) -> None:
    check_error(serve("reward")[1].post(path, json=body), 400, code, param)


@pytest.mark.parametrize("inputs", [None, 3, [], [["a", "b", "c"]], ["a", "b", "c"], [["a"], "b"], [[]]])
def test_inputs_that_tei_refuses_are_refused(serve: Serve, inputs: Any) -> None:
    answer = serve("reward")[1].post("/predict", json={"inputs": inputs})
    check_tei_error(answer, 400, "Validation", answer.json()["code"])
    assert "inputs" in answer.json()["code"]
