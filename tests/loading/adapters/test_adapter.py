"""LoRA adapters without PyTorch: merged by hand and compared; what does not fit or cannot be merged is refused."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from loading.gguf.files import byte_level_vocabulary, model_metadata, model_tensors, write_gguf
from onepass import Scorer
from onepass.errors import BadCheckpoint, ConfigError, ModelNotFound, UnsupportedModel
from onepass.loading.adapters.lora_config import lora_config
from onepass.loading.model import Model, open_model
from onepass.loading.source import SourceOptions

CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "org/base",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj"],
    "bias": "none",
}
QUERY = "model.layers.0.self_attn.q_proj"
Tensors = dict[str, np.ndarray]


def pair(module: str, rows: int, columns: int, rank: int = 4) -> Tensors:
    dice = np.random.default_rng(len(module))
    a, b = dice.standard_normal((rank, columns), np.float32), dice.standard_normal((rows, rank), np.float32)
    return {f"base_model.model.{module}.lora_A.weight": a, f"base_model.model.{module}.lora_B.weight": b}


@pytest.fixture
def adapter(tmp_path: Path) -> Callable[..., Path]:
    def write(tensors: Tensors, **changes: Any) -> Path:
        folder = tmp_path / "my-adapter"
        folder.mkdir(exist_ok=True)
        (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **changes}))
        save_file(tensors, folder / "adapter_model.safetensors")
        return folder

    return write


def opened(model: Path, adapter: Path) -> Model:
    return open_model(str(model), SourceOptions(adapter=str(adapter)))


def read(model: Model, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
    assert model.reader is not None
    return model.reader.read(name, index)


def test_weights_are_the_sum(checkpoint: Callable[[str], Path], adapter: Callable[..., Path]) -> None:
    tensors = pair(QUERY, 64, 64)
    model = opened(checkpoint("llama2"), adapter(tensors))
    a, b = tensors.values()
    stored = load_file(checkpoint("llama2") / "model.safetensors")
    expected = stored[f"{QUERY}.weight"] + 2 * (b @ a)
    np.testing.assert_allclose(read(model, f"{QUERY}.weight"), expected, atol=1e-5)
    part = (slice(16, 48), slice(8, 40))
    np.testing.assert_allclose(read(model, f"{QUERY}.weight", part), expected[part], atol=1e-5)
    others = [name for name in stored if name != f"{QUERY}.weight"]
    assert all((read(model, name) == stored[name]).all() for name in others)
    assert model.name == "llama2+my-adapter"
    assert model.adapter is not None
    assert (model.adapter.rank, model.adapter.merged, model.adapter.base_model) == (4, ("q_proj",), "org/base")


def test_a_sum_is_the_same_however_many_rows_are_added_at_once(
    checkpoint: Callable[[str], Path], adapter: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(checkpoint("llama2"), adapter(pair(QUERY, 64, 64)))
    whole = read(model, f"{QUERY}.weight")
    monkeypatch.setattr("onepass.loading.adapters.merge.ROWS_ELEMENTS", 5 * 64)
    np.testing.assert_allclose(read(model, f"{QUERY}.weight"), whole, atol=1e-5)


def test_scales_follow_rank_alpha_and_patterns() -> None:
    patterns = {"rank_pattern": {"v_proj": 16, r"layers\.0\.mlp\.up_proj": 2}, "alpha_pattern": {"v_proj": 64}}
    plain, stabilised = lora_config({**CONFIG, **patterns}), lora_config({**CONFIG, **patterns, "use_rslora": True})
    assert (plain.scale_of(QUERY), stabilised.scale_of(QUERY)) == (2.0, 8 / math.sqrt(4))
    assert (plain.rank_of("model.layers.3.self_attn.v_proj"), plain.scale_of("a.v_proj")) == (16, 4.0)
    assert plain.rank_of("model.layers.0.mlp.up_proj") == 2
    assert plain.rank_of("model.layers.1.mlp.up_proj") == 4
    assert plain.rank_of("model.layers.1.mlp.upv_proj") == 4, "whole names only"


def test_a_gguf_models_rows_are_in_the_adapters_order(tmp_path: Path, adapter: Callable[..., Path]) -> None:
    vocabulary = byte_level_vocabulary("gpt-2")
    tensors = model_tensors("llama", len(vocabulary["tokenizer.ggml.tokens"]))
    file = write_gguf(tmp_path / "m.gguf", model_metadata("llama") | vocabulary, tensors)
    given = pair(QUERY, 32, 32)
    a, b = given.values()
    base, model = open_model(str(file)), opened(file, adapter(given))
    expected = read(base, f"{QUERY}.weight") + 2 * (b @ a)
    np.testing.assert_allclose(read(model, f"{QUERY}.weight"), expected, atol=1e-5)
    assert model.quantised_tensors == ()


def test_a_head_makes_the_model_a_classifier(checkpoint: Callable[[str], Path], adapter: Callable[..., Path]) -> None:
    head = np.random.default_rng(0).standard_normal((3, 64), np.float32)
    for name in ("base_model.model.score.weight", "base_model.model.score.modules_to_save.default.weight"):
        model = opened(checkpoint("qwen3"), adapter({name: head}, task_type="SEQ_CLS"))
        assert (model.config.num_labels, model.config.tied) == (3, False)
        assert model.class_head is not None
        assert model.class_head.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
        weights = model.load(jnp.dtype(jnp.float32))
        assert (np.asarray(weights.head) == head).all()


def test_one_side_of_a_tied_embedding_is_untied(
    checkpoint: Callable[[str], Path], adapter: Callable[..., Path]
) -> None:
    stored = load_file(checkpoint("qwen2") / "model.safetensors")["model.embed_tokens.weight"]
    other = stored + 1
    for saved, embed, head in (("lm_head", stored, other), ("model.embed_tokens", other, stored)):
        model = opened(checkpoint("qwen2"), adapter({f"base_model.model.{saved}.weight": other}))
        weights = model.load(jnp.dtype(jnp.float32))
        assert (np.asarray(weights.embed) == embed).all()
        assert (np.asarray(weights.head) == head).all()


def test_int8_weights_are_those_of_the_sum(checkpoint: Callable[[str], Path], adapter: Callable[..., Path]) -> None:
    folder = adapter({name: 10 * value for name, value in pair(QUERY, 64, 64).items()})
    wide = opened(checkpoint("llama2"), folder).load(jnp.dtype(jnp.float32)).layers.qkv
    layers = opened(checkpoint("llama2"), folder).load(jnp.dtype(jnp.float32), int8="fine").layers
    np.testing.assert_allclose(layers.layer(0).qkv, wide[0], atol=float(np.abs(wide[0]).max()) / 127)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"use_dora": True}, "DoRA adapters are not supported; use_dora is True"),
        ({"peft_type": "IA3"}, "peft_type 'IA3' is not supported; supported: LORA"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"layer_replication": [[0, 1]]}, "replicate layers"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"target_parameters": ["experts"]}, "target_parameters"),
        ({"alora_invocation_tokens": [1]}, "cannot be merged"),
        ({"init_lora_weights": "pissa_niter_16"}, "'pissa_niter_16' changes the base weights"),
        ({"kasa_config": {"rank": 4}}, "will not ignore: kasa_config"),
    ],
    ids=str,
)
def test_what_cannot_be_merged_is_refused_by_name(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        lora_config({**CONFIG, **changes})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        (
            pair(QUERY, 64, 96),
            "(it was trained on org/base) does not fit llama2: base_model.model.model.layers.0.self_attn.q_proj."
            "lora_A.weight must be [4, 64] in F32, F16 or BF16, is [4, 96] in F32",
        ),
        (pair(QUERY, 64, 64, rank=8), "lora_A.weight must be [4, 64]"),
        (pair("model.layers.7.self_attn.q_proj", 64, 64), "llama2 has no model.layers.7.self_attn.q_proj.weight"),
        (pair("transformer.h.0.attn.c_attn", 64, 64), "llama2 has no transformer.h.0.attn.c_attn.weight"),
        ({f"base_model.model.{QUERY}.bias": np.ones(64, np.float32)}, "llama2 has no"),
        ({"base_model.model.score.weight": np.ones((2, 32), np.float32)}, "must be [2, 64]"),
        ({"base_model.model.lm_head.weight": np.ones((700, 64), np.float32)}, "is [700, 64]"),
        (dict(list(pair(QUERY, 64, 64).items())[:1]), "must have lora_A and lora_B"),
    ],
    ids=["columns", "rank", "layer", "family", "bias", "head", "vocabulary", "half"],
)
def test_an_adapter_of_another_model_is_refused(
    checkpoint: Callable[[str], Path], adapter: Callable[..., Path], tensors: Tensors, says: str
) -> None:
    folder = adapter(tensors)
    with pytest.raises(BadCheckpoint) as caught:
        opened(checkpoint("llama2"), folder)
    assert says in str(caught.value)


def test_dora_is_refused_by_its_tensors(checkpoint: Callable[[str], Path], adapter: Callable[..., Path]) -> None:
    magnitude = {f"base_model.model.{QUERY}.lora_magnitude_vector": np.ones(64, np.float32)}
    folder = adapter(pair(QUERY, 64, 64) | magnitude)
    with pytest.raises(UnsupportedModel, match="DoRA adapters are not supported; my-adapter has the tensor"):
        opened(checkpoint("llama2"), folder)


def test_where_an_adapter_is_looked_for(
    checkpoint: Callable[[str], Path], adapter: Callable[..., Path], tmp_path: Path
) -> None:
    folder = adapter(pair(QUERY, 64, 64))
    with pytest.raises(UnsupportedModel, match=r"is an adapter: give its base model as MODEL, and --adapter"):
        open_model(str(folder))
    with pytest.raises(ModelNotFound, match=r"no adapter '\./nowhere'"):
        open_model(str(checkpoint("llama2")), SourceOptions(adapter="./nowhere"))
    with pytest.raises(BadCheckpoint, match=r"must be a folder with adapter_config\.json"):
        opened(checkpoint("llama2"), tmp_path)
    with pytest.raises(ConfigError, match="an adapter needs a model with weights of its own"):
        open_model("random:qwen3-0.6b?layers=1", SourceOptions(adapter=str(folder)))
    with pytest.raises(ConfigError, match="opened without the adapter"):
        Scorer.load(open_model(str(checkpoint("llama2"))), adapter=folder)
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(b"\x80")
    with pytest.raises(UnsupportedModel, match=r"must hold adapter_model.safetensors; found only adapter_model.bin"):
        opened(checkpoint("llama2"), folder)
