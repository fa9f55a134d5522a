"""Each device reads its own slices of a checkpoint and nothing else, and random weights are the same on any number."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints import make_checkpoint
from onepass.errors import ConfigError
from onepass.loading.export import export
from onepass.loading.load_weights import load_weights
from onepass.loading.model import open_model
from onepass.loading.safetensors import SafetensorsReader
from onepass.loading.tensor_reader import TensorInfo
from onepass.models.config import ModelConfig
from onepass.models.known import known_config
from onepass.models.random import random_weights
from onepass.parallel.meshes import replica_meshes

FLOAT32 = jnp.dtype("float32")


class CountingReader:
    """Counts the bytes that were asked for, by tensor."""

    def __init__(self, reader: SafetensorsReader) -> None:
        self._reader = reader
        self.bytes: Counter[str] = Counter()
        self.largest: Counter[str] = Counter()

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._reader.tensors()

    def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        found = self._reader.read(name, index)
        self.bytes[name] += found.nbytes
        self.largest[name] = max(self.largest[name], found.nbytes)
        return found

    def close(self) -> None:
        self._reader.close()


def opened(folder: Path, name: str) -> tuple[ModelConfig, CountingReader]:
    return open_model(str(make_checkpoint(folder, name))).config, CountingReader(SafetensorsReader(folder))


def test_each_device_reads_its_slices_only(tmp_path: Path) -> None:
    config, reader = opened(tmp_path, "qwen3")
    assert config.num_kv_heads % 2 == 0, "heads go round two devices"
    weights = load_weights(config, reader, FLOAT32, mesh=replica_meshes(jax.devices(), 2, 1)[0])
    sizes = {name: int(np.prod(info.shape)) * 4 for name, info in reader.tensors().items()}
    assert reader.bytes == sizes, "all of the file is read, and nothing of it twice"
    for name, size in sizes.items():
        if "_proj" in name or "embed" in name:
            assert reader.largest[name] <= -(-size // 2) + 4 * config.hidden_size, f"{name} is read in halves"
    halves = {shard.device: shard.data.nbytes for shard in weights.layers.qkv.addressable_shards}
    assert len(halves) == 2
    assert set(halves.values()) == {weights.layers.qkv.nbytes // 2}


def test_kv_heads_that_are_copied_are_read_by_each_holder(tmp_path: Path) -> None:
    config, reader = opened(tmp_path, "qwen2")
    devices = 2 * config.num_kv_heads
    load_weights(config, reader, FLOAT32, mesh=replica_meshes(jax.devices(), devices, 1)[0])
    for name, info in reader.tensors().items():
        whole = int(np.prod(info.shape)) * 4
        copies = 2 if ".k_proj." in name or ".v_proj." in name else 1
        assert reader.bytes[name] == copies * whole, name


@pytest.mark.parametrize(("name", "devices"), [("qwen3-untied", 2), ("llama-bias", 3)])
def test_a_split_checkpoint_is_the_checkpoint(tmp_path: Path, name: str, devices: int) -> None:
    """Written out again from the devices, every tensor has the bytes that it had in the file."""
    config, reader = opened(tmp_path / "in", name)
    weights = load_weights(config, reader, FLOAT32, mesh=replica_meshes(jax.devices(), devices, 1)[0])
    export(config, weights, tmp_path / "out")
    again = SafetensorsReader(tmp_path / "out")
    assert again.tensors().keys() == reader.tensors().keys()
    for tensor in reader.tensors():
        assert (again.read(tensor) == reader.read(tensor)).all(), tensor


def test_random_weights_are_the_same_on_any_number_of_devices(tmp_path: Path) -> None:
    """With heads copied and filled up, and columns and rows that do not go round."""
    small = {"num_layers": 2, "hidden_size": 32, "head_dim": 8, "mlp_size": 50, "vocab_size": 61}
    config = replace(known_config("qwen2.5-1.5b"), **small)
    mesh = replica_meshes(jax.devices(), 8, 1)[0]
    for folder, where in (("whole", None), ("split", mesh)):
        export(config, random_weights(config, FLOAT32, 5, where), tmp_path / folder)
    whole, split = ((tmp_path / folder / "model.safetensors").read_bytes() for folder in ("whole", "split"))
    assert whole == split


def test_a_split_into_more_devices_than_heads_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    config, reader = opened(tmp_path, "qwen3")
    with pytest.raises(ConfigError, match=f"tp must be from 1 to {config.num_heads}"):
        load_weights(config, reader, FLOAT32, mesh=replica_meshes(jax.devices(), 8, 1)[0])
    assert not reader.bytes
