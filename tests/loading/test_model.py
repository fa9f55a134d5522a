"""A model is opened before it is loaded: config, tokenizer and templates are known, and faults are told early."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import pytest

from onepass.errors import BadCheckpoint, ModelNotFound, UnsupportedModel
from onepass.loading.model import open_model
from onepass.models.known import KNOWN


@pytest.fixture
def folder(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(checkpoint("qwen3"), tmp_path / "ranker"))


def test_a_folder_opens_with_everything_but_the_weights(folder: Path) -> None:
    model = open_model(str(folder))
    assert (model.name, model.config.architecture) == ("ranker", "qwen3")
    assert model.tokenizer is not None
    assert model.tokenizer.encode_item(" yes")
    assert model.chat_template is not None
    assert "<|im_start|>" in model.chat_template
    assert model.file_bytes == (folder / "model.safetensors").stat().st_size
    assert model.rank_method == "likelihood"
    assert "{document}" in model.rank_template


def test_a_loaded_model_has_the_dtype_that_was_asked_for(folder: Path) -> None:
    weights = open_model(str(folder)).load(jnp.dtype("bfloat16"))
    assert {leaf.dtype.name for leaf in (weights.embed, weights.layers.qkv, weights.final_norm)} == {"bfloat16"}


def test_a_random_shape_takes_ids_only_and_follows_its_seed() -> None:
    model = open_model("random:smollm2-135m?layers=1&seed=5")
    assert model.tokenizer is None
    assert model.config.num_layers == 1
    assert model.config.hidden_size == KNOWN["smollm2-135m"].hidden_size
    assert model.reader is None


def test_rerankers_rank_by_label(folder: Path) -> None:
    renamed = folder.rename(folder.parent / "Qwen3-Reranker-0.6B")
    model = open_model(str(renamed))
    assert model.rank_method == "label"
    assert "<Document>" in model.rank_template


def test_the_newer_file_of_a_chat_template_wins(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert open_model(str(folder)).chat_template == "{{ messages }}"


def test_a_folder_without_chat_template_opens(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    assert open_model(str(folder)).chat_template is None


def test_a_folder_without_tokenizer_is_told_what_it_lacks(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadCheckpoint, match=r"ranker must hold tokenizer\.json; it holds config\.json, model"):
        open_model(str(folder))


def test_a_folder_without_weights_is_told_so_on_opening(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80")
    with pytest.raises(UnsupportedModel, match="pickles"):
        open_model(str(folder))


def test_an_unknown_architecture_is_refused_on_opening(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(UnsupportedModel, match="model_type 'mamba' is not supported; supported: qwen3"):
        open_model(str(folder))


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_config_that_is_no_json_object_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(BadCheckpoint, match=r"config\.json must be a JSON object"):
        open_model(str(folder))


def test_a_tensor_that_contradicts_the_config_is_refused_on_loading(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 100}))
    with pytest.raises(BadCheckpoint, match=r"gate_proj\.weight must be \(100, 64\), is \(96, 64\)"):
        open_model(str(folder)).load(jnp.dtype("float32"))


def test_a_name_of_nothing_is_not_found() -> None:
    with pytest.raises(ModelNotFound, match=r"no model is called 'smolllm2-135m'.*did you mean smollm2-135m"):
        open_model("smolllm2-135m")
