"""A classification head: scores of its classes at the last token, in every mode, kept or not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from onepass import RequestError, Scorer, ScoreRequest, Timings, Usage
from onepass.engine.encoding.encode import Encoder
from onepass.engine.readout import ReadOut, RunInfo, result_of
from onepass.errors import BadCheckpoint, ConfigError
from onepass.loading.model import open_model
from onepass.loading.rerankers.readouts import ClassHead

QUERY = "Is it relevant?"
ITEMS = [" The quick fox", " a river bank", " Paris", ""]
ROWS = [5, 17, 40]  # tokens whose LM head rows become classes
BIAS = [0.5, -0.25, 0.0]


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.fixture(scope="module")
def folders(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A causal model, and a classifier whose head is three rows of the causal model's, with a bias."""
    causal = checkpoint("qwen3-untied")
    folder = Path(shutil.copytree(causal, tmp_path_factory.mktemp("classifier") / "model"))
    tensors = load_file(folder / "model.safetensors")
    tensors["score.weight"] = tensors.pop("lm_head.weight")[ROWS].copy()
    tensors["score.bias"] = np.array(BIAS, np.float32)
    save_file(tensors, folder / "model.safetensors")
    change_config(folder, architectures=["Qwen3ForSequenceClassification"], id2label={"0": "a", "1": "b", "2": "c"})
    return causal, folder


@pytest.fixture(scope="module")
def right(folders: tuple[Path, Path]) -> np.ndarray:
    """The classes' logits: the causal model's logits of those tokens, with the bias."""
    with Scorer.load(str(folders[0]), dtype="float32") as scorer:
        return np.array(scorer.score(QUERY, ITEMS, label_token_ids=ROWS, mode="serial").logits) + BIAS


@pytest.fixture(scope="module")
def classifier(folders: tuple[Path, Path]) -> Any:
    with Scorer.load(str(folders[1]), dtype="float32") as scorer:
        yield scorer


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("mode", ["serial", "packed", "chunked", "extend", "auto"])
def test_classes_are_read_at_the_last_token_in_every_mode(classifier: Scorer, right: np.ndarray, mode: Any) -> None:
    for _ in range(2):  # the second time the context is kept
        result = classifier.score(QUERY, ITEMS, mode=mode)
        np.testing.assert_allclose(result.logits, right, atol=1e-4)
        np.testing.assert_allclose(result.scores, softmax(right), atol=1e-5)
    assert result.labels == [["a", "b", "c"]] * len(ITEMS)
    assert result.label_mass == pytest.approx([1.0] * len(ITEMS), abs=1e-5)


def test_a_head_read_one_token_early_would_be_noticed(classifier: Scorer, right: np.ndarray) -> None:
    early = [ids[:-1] for ids in classifier.tokenizer.encode_items(ITEMS[:3])]
    logits = classifier.score(classifier.tokenizer.encode_query(QUERY), early).logits
    assert np.abs(np.array(logits) - right[:3]).max() > 0.1


def test_some_classes_by_name_or_number(classifier: Scorer, right: np.ndarray) -> None:
    named = classifier.score(QUERY, ITEMS, ["c", "a"])
    np.testing.assert_allclose(named.scores, softmax(right)[:, [2, 0]], atol=1e-5)
    numbered = classifier.score(QUERY, ITEMS, label_token_ids=[2, 0], apply_softmax=True)
    np.testing.assert_allclose(numbered.scores, softmax(right[:, [2, 0]]), atol=1e-5)
    assert numbered.labels[0] == ["c", "a"]


@pytest.mark.parametrize(
    ("problem_type", "expected"),
    [
        ("regression", lambda logits: logits),
        ("multi_label_classification", lambda logits: 1 / (1 + np.exp(-logits))),
        ("single_label_classification", softmax),
    ],
)
def test_the_problem_type_decides_what_a_score_is(problem_type: str, expected: Any) -> None:
    logits = np.array([[1.0, -30.0, 0.5], [2.0, 0.25, -1.0]], np.float32)
    head = ClassHead.of(("a", "b", "c"), problem_type)
    encoded = Encoder(None, 100, 64, class_head=head).encode(ScoreRequest(query=[1], items=[[2], [3]]))
    total = np.log(np.exp(logits).sum(axis=1)).repeat(3)
    result = result_of(encoded, ReadOut(logits.ravel(), total), RunInfo("", "", "", Usage(0), Timings()), None)
    np.testing.assert_allclose(result.scores, expected(logits.astype(np.float64)), atol=1e-6)
    assert (result.label_mass is None) == (problem_type != "single_label_classification")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"labels": ["d"]}, "must be classes of this model: a, b, c; got 'd'"),
        ({"labels": []}, "must be a list of strings"),
        ({"label_token_ids": [3]}, "classes from 0 to 2"),
        ({"label_token_ids": [0, 0]}, "must be distinct"),
        ({"label_token_ids": [[0], [1]]}, "one list for each of 1 items"),
        ({"continuations": [" yes"]}, "classification head and no vocabulary"),
    ],
)
def test_labels_that_are_no_classes_are_refused(classifier: Scorer, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        classifier.score("q", ["x"], **fields)


def test_a_head_of_the_wrong_size_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders[1], tmp_path / "model"))
    change_config(folder, id2label={"0": "a", "1": "b"})
    with pytest.raises(BadCheckpoint, match=r"score\.weight must be \(2, .*is \(3, "):
        Scorer.load(str(folder), dtype="float32")
    change_config(folder, problem_type="guessing")
    with pytest.raises(ConfigError, match="problem_type must be one of"):
        open_model(str(folder))
