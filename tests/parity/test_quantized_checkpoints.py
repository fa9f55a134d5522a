"""Quantised checkpoints give the weights that torch gives: every format, exactly, whole and in slices.

Needs the reference environment; without it these tests are skipped, and `loading.quantized.test_reader` remains.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from onepass import Scorer
from onepass.loading.model import open_model
from onepass.loading.tensor_reader import TensorReader
from reference.quantized_checkpoints import make

FORMATS = (
    "awq", "fp8-blocks", "fp8-rows", "fp8-tensor", "gptq-2", "gptq-3", "gptq-8", "gptq-act-order", "gptq-v2", "int8",
    "packed-asymmetric", "packed-symmetric",
)  # fmt: skip


@pytest.fixture(scope="module")
def folders(
    checkpoint: Callable[[str], Path], reference_python: Path | None, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    if reference_python is None:
        pytest.skip("no reference environment: PyTorch was not cheap to install here")
    out = tmp_path_factory.mktemp("quantized")
    assert make(reference_python, checkpoint("llama2"), out) == sorted(FORMATS)
    return out


def reader_of(folder: Path) -> TensorReader:
    reader = open_model(str(folder)).reader
    assert reader is not None
    return reader


@pytest.mark.parametrize("name", FORMATS)
def test_weights_equal_those_of_torch(folders: Path, name: str) -> None:
    ours, theirs = reader_of(folders / name), reader_of(folders / f"{name}-plain")
    assert {key: info.shape for key, info in ours.tensors().items()} == {
        key: info.shape for key, info in theirs.tensors().items()
    }
    for key in theirs.tensors():
        np.testing.assert_array_equal(ours.read(key), theirs.read(key), err_msg=key)


@pytest.mark.parametrize("name", FORMATS)
def test_slices_equal_those_of_the_whole(folders: Path, name: str) -> None:
    """As devices that share a model read them."""
    reader = reader_of(folders / name)
    key = "model.layers.1.mlp.down_proj.weight"
    whole = reader.read(key)
    for index in ((slice(13, 29),), (slice(None), slice(5, 71)), (slice(40, 64), slice(48, 96))):
        np.testing.assert_array_equal(reader.read(key, index), whole[index])


def test_a_quantised_checkpoint_scores_as_its_dequantised_one(folders: Path) -> None:
    scores = []
    for folder in (folders / "gptq-act-order", folders / "gptq-act-order-plain"):
        with Scorer.load(str(folder), dtype="float32") as scorer:
            scores.append(scorer.score("The capital of France is", [" Paris", " Rome"], label_token_ids=[5, 9]).scores)
    assert scores[0] == scores[1]
    config = json.loads((folders / "gptq-act-order" / "config.json").read_text())
    assert config["quantization_config"]["desc_act"] is True
