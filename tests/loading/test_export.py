"""A loaded model written as a Hugging Face folder is, loaded again, the same model bit for bit."""

import json
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints import VARIANTS
from onepass.loading.export import export
from onepass.loading.load_weights import load_weights
from onepass.loading.model import open_model
from onepass.loading.safetensors import SafetensorsReader
from onepass.models.hf_config import from_hf


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", VARIANTS)
def test_export_and_load_again_gives_the_same_bits(
    name: str, dtype: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    model = open_model(str(checkpoint(name)))
    weights = model.load(jnp.dtype(dtype))
    export(model.config, weights, tmp_path)
    config = from_hf(json.loads((tmp_path / "config.json").read_text()))
    assert config == model.config
    again = load_weights(config, SafetensorsReader(tmp_path), jnp.dtype(dtype))
    for first, second in zip(jax.tree.leaves(weights), jax.tree.leaves(again), strict=True):
        assert first.dtype == second.dtype
        np.testing.assert_array_equal(np.asarray(first), np.asarray(second))


def test_the_tensors_are_those_of_the_checkpoint(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Against the file it came from, not against our own reading of what was written."""
    folder = checkpoint("qwen2")
    model = open_model(str(folder))
    export(model.config, model.load(jnp.dtype("float32")), tmp_path)
    original, written = SafetensorsReader(folder), SafetensorsReader(tmp_path)
    assert original.tensors() == written.tensors()
    for name in original.tensors():
        np.testing.assert_array_equal(original.read(name), written.read(name))
