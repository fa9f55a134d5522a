"""A model with a LoRA adapter gives PEFT's logits, for adapters that PEFT saved itself.

Needs the reference environment; without it these tests are skipped, and `loading.adapters.test_adapter` remains.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onepass import Scorer
from reference.lora_adapters import ADAPTERS, make

TOLERANCE = 1e-4
LABELS = [5, 9, 40, 200, 511]


@pytest.fixture(scope="module")
def folders(
    checkpoint: Callable[[str], Path], reference_python: Path | None, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    if reference_python is None:
        pytest.skip("no reference environment: PyTorch was not cheap to install here")
    out = tmp_path_factory.mktemp("adapters")
    make(reference_python, {name: checkpoint(name) for name, _ in ADAPTERS.values()}, out)
    return out


def read_out(scorer: Scorer, ids: list[int]) -> np.ndarray:
    """The classes' logits, or the log-probabilities of some tokens."""
    if scorer.model.class_head is not None:
        return np.array(scorer.score(ids[:1], [ids[1:]]).logits[0])
    scores = scorer.score(ids[:1], [ids[1:]], label_token_ids=LABELS).scores[0]
    return np.log(np.array(scores))


def expected_of(value: dict[str, Any]) -> np.ndarray:
    logits = np.array(value["logits"])
    if value["task"] == "SEQ_CLS":
        return logits
    normed = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    return (normed - logits.max(-1, keepdims=True))[:, LABELS]


@pytest.mark.parametrize("name", ADAPTERS)
def test_logits_equal_those_of_peft(folders: Path, name: str) -> None:
    value = json.loads((folders / name / "expected.json").read_text())
    wanted = expected_of(value)
    with Scorer.load(value["checkpoint"], dtype="float32", adapter=folders / name / "adapter") as scorer:
        assert scorer.model.adapter is not None
        ours = np.array([read_out(scorer, ids) for ids in value["sequences"]])
    np.testing.assert_allclose(ours, wanted, atol=TOLERANCE)
    if value["task"] != "SEQ_CLS":
        with Scorer.load(value["checkpoint"], dtype="float32") as scorer:
            without = np.array([read_out(scorer, ids) for ids in value["sequences"]])
        assert np.abs(without - wanted).max() > 100 * TOLERANCE, "the adapter matters"
