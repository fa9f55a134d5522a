"""Tensors into the network's tree: strict both ways, any float dtype, one tensor per thread in host memory."""

import json
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoints import make_checkpoint, random_tensors
from onepass.errors import BadCheckpoint
from onepass.loading import host_weights
from onepass.loading.load_weights import load_weights
from onepass.loading.safetensors import SafetensorsReader
from onepass.loading.tensor_reader import TensorInfo
from onepass.models.config import ModelConfig
from onepass.models.hf_config import from_hf

FLOAT32 = jnp.dtype("float32")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path, "qwen3-untied")


def config_of(folder: Path) -> ModelConfig:
    return from_hf(json.loads((folder / "config.json").read_text()))


def change(folder: Path, **changes: np.ndarray | None) -> None:
    """Exchange, add or (None) remove tensors; `__` stands for a dot."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        name = name.replace("__", ".")
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")


def refusal(folder: Path) -> str:
    with pytest.raises(BadCheckpoint, match="does not match its configuration") as caught:
        load_weights(config_of(folder), SafetensorsReader(folder), FLOAT32)
    return str(caught.value)


def test_every_tensor_stands_where_the_network_looks_for_it(folder: Path) -> None:
    config = config_of(folder)
    weights = load_weights(config, SafetensorsReader(folder), FLOAT32)
    tensors = load_file(folder / "model.safetensors")
    kv, group, size = config.num_kv_heads, config.group, config.head_dim
    for layer in range(config.num_layers):
        attention = f"model.layers.{layer}.self_attn"
        fused = np.asarray(weights.layers.qkv[layer]).reshape(kv, group + 2, size, config.hidden_size)
        for part, rows in (("q", fused[:, :group]), ("k", fused[:, group]), ("v", fused[:, group + 1])):
            assert (rows.reshape(-1, config.hidden_size) == tensors[f"{attention}.{part}_proj.weight"]).all()
        out = np.asarray(weights.layers.out[layer]).reshape(config.hidden_size, -1)
        assert (out == tensors[f"{attention}.o_proj.weight"]).all()
        for part, index in (("gate", 0), ("up", 1)):
            assert (
                weights.layers.gate_up[layer][index] == tensors[f"model.layers.{layer}.mlp.{part}_proj.weight"]
            ).all()
        assert (weights.layers.down[layer] == tensors[f"model.layers.{layer}.mlp.down_proj.weight"]).all()
        assert (weights.layers.q_norm[layer] == tensors[f"{attention}.q_norm.weight"]).all()
    assert (weights.embed == tensors["model.embed_tokens.weight"]).all()
    assert (weights.head == tensors["lm_head.weight"]).all()


def test_a_missing_tensor_is_named(folder: Path) -> None:
    change(folder, model__layers__1__mlp__up_proj__weight=None)
    assert "missing: model.layers.1.mlp.up_proj.weight" in refusal(folder)


def test_a_tensor_too_many_is_named(folder: Path) -> None:
    change(folder, model__layers__1__self_attn__q_proj__bias=np.zeros(64, np.float32))
    assert "not part of the model: model.layers.1.self_attn.q_proj.bias" in refusal(folder)


def test_layers_beyond_the_config_are_named_not_ignored(folder: Path) -> None:
    change(folder, model__layers__3__mlp__up_proj__weight=np.zeros((80, 48), np.float32))
    assert "not part of the model: model.layers.3.mlp.up_proj.weight" in refusal(folder)


def test_a_wrong_shape_is_named_with_the_right_one(folder: Path) -> None:
    change(folder, model__norm__weight=np.zeros(47, np.float32))
    assert "wrong shape: model.norm.weight must be (48,), is (47,)" in refusal(folder)


def test_a_transposed_tensor_is_a_wrong_shape(folder: Path) -> None:
    change(folder, model__layers__0__mlp__down_proj__weight=np.zeros((80, 48), np.float32))
    assert "down_proj.weight must be (48, 80), is (80, 48)" in refusal(folder)


def test_a_wrong_dtype_is_named(folder: Path) -> None:
    change(folder, model__norm__weight=np.zeros(48, np.int8))
    message = refusal(folder)
    assert "wrong dtype (wanted one of BF16, F16, F32" in message
    assert "model.norm.weight is I8" in message


def test_all_that_is_wrong_is_told_at_once_and_in_brief(folder: Path) -> None:
    change(folder, lm_head__weight=None, extra=np.zeros(1, np.float32), model__norm__weight=np.zeros(1, np.float32))
    message = refusal(folder)
    assert all(part in message for part in ("missing: lm_head.weight", "not part of the model: extra", "wrong shape"))
    names = [f"extra{i}" for i in range(50)]
    change(folder, **dict.fromkeys(names, np.zeros(1, np.float32)))
    assert "and 43 more" in refusal(folder)


def test_stored_rotary_frequencies_are_passed_over(folder: Path) -> None:
    """Old exporters wrote them; they follow from the config."""
    change(folder, model__layers__0__self_attn__rotary_emb__inv_freq=np.zeros(8, np.float32))
    load_weights(config_of(folder), SafetensorsReader(folder), FLOAT32)


def test_a_tied_model_may_repeat_its_embedding(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "qwen3")
    embedding = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    change(tmp_path, lm_head__weight=embedding)
    weights = load_weights(config_of(tmp_path), SafetensorsReader(tmp_path), FLOAT32)
    assert weights.head is None


@pytest.mark.parametrize(
    ("written", "wanted"),
    [("float16", "float32"), ("bfloat16", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16")],
)
def test_any_float_file_loads_in_any_dtype(tmp_path: Path, written: str, wanted: str) -> None:
    make_checkpoint(tmp_path, "llama2", dtype=written)
    config = config_of(tmp_path)
    weights = load_weights(config, SafetensorsReader(tmp_path), jnp.dtype(wanted))
    raw = json.loads((tmp_path / "config.json").read_text())
    tensors = random_tensors(raw, 0, written)
    kind = np.dtype(ml_dtypes.bfloat16) if wanted == "bfloat16" else np.dtype(wanted)
    for found, name in (
        (weights.embed, "model.embed_tokens.weight"),
        (weights.layers.down[1], "model.layers.1.mlp.down_proj.weight"),
    ):
        assert found.dtype == wanted
        assert (np.asarray(found) == tensors[name].astype(kind)).all()


class CountingReader:
    """Remembers every tensor it hands out, weakly, and how many of them were alive at each read."""

    def __init__(self, reader: SafetensorsReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._handed: list[weakref.ref[np.ndarray]] = []
        self.read_names: list[str] = []
        self.most_alive = 0

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._reader.tensors()

    def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        with self._lock:
            self.read_names.append(name)
            tensor = np.array(self._reader.read(name, index))
            self._handed.append(weakref.ref(tensor))
            self.most_alive = max(self.most_alive, self.alive())
            return tensor

    def alive(self) -> int:
        return sum(handed() is not None for handed in self._handed)

    def close(self) -> None:
        self._reader.close()


def test_the_host_holds_one_tensor_per_thread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_weights, "MAX_THREADS", 2)
    reader = CountingReader(SafetensorsReader(folder))
    weights = load_weights(config_of(folder), reader, jnp.dtype("bfloat16"))
    assert sorted(reader.read_names) == sorted(reader.tensors()), "each tensor is read once"
    assert reader.most_alive <= 2, "what was read before is let go before the next is read"
    assert reader.alive() == 0
    assert weights.embed.dtype == "bfloat16"


def test_progress_counts_tensors_up_to_all_of_them(folder: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    reader = SafetensorsReader(folder)
    load_weights(config_of(folder), reader, FLOAT32, lambda *told: seen.append(told))
    assert {stage for stage, _, _ in seen} == {"load"}
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[-1] == ("load", len(reader.tensors()), len(reader.tensors()))
