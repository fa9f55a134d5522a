"""Weights in int8: a file's blocks are kept as they are, other tensors are quantised as they are read."""

from pathlib import Path

import gguf
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from loading.gguf.files import Stored, model_metadata, model_tensors, stored, write_gguf
from onepass.kernels.cpu import build
from onepass.loading.gguf.config import config_from_gguf
from onepass.loading.gguf.file import GgufFile
from onepass.loading.gguf.header import SUPPORTED_TYPES
from onepass.loading.gguf.reader import GgufReader
from onepass.loading.int8_weights import quantized
from onepass.loading.load_weights import load_weights
from onepass.models.int8 import BLOCK, in_int8
from onepass.models.weights import MATRICES

QUANTISED = [kind for kind in SUPPORTED_TYPES if kind.startswith("Q")]
needs_compiler = pytest.mark.skipif(build.cpu_problem() is not None, reason=str(build.cpu_problem()))


@needs_compiler
@pytest.mark.parametrize("kind", QUANTISED)
def test_blocks_split_into_numbers_scales_and_offsets_are_the_same_values(kind: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "t.gguf", model_metadata(), {"matrix": stored(kind, (6, 512))})
    file = GgufFile.open(path)
    blocks = file.read_blocks("matrix")
    assert blocks is not None
    assert (blocks.numbers.dtype, blocks.numbers.shape, blocks.block) == (np.int8, (6, 512), 16)
    groups = blocks.numbers.reshape(*blocks.scale.shape, -1).astype(np.float32) * blocks.scale[..., None]
    if blocks.offset is not None:
        groups = groups + blocks.offset[..., None]
    np.testing.assert_array_equal(groups.reshape(6, 512), file.read("matrix"))
    assert (blocks.offset is not None) == (kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"))


@needs_compiler
@pytest.mark.parametrize("kind", QUANTISED)
def test_numbers_lie_around_zero(kind: str, tmp_path: Path) -> None:
    """An activation's rounding counts times the number it is multiplied with."""
    path = write_gguf(tmp_path / "t.gguf", model_metadata(), {"matrix": stored(kind, (6, 512))})
    blocks = GgufFile.open(path).read_blocks("matrix")
    assert blocks is not None
    half, lowest, highest = 2 ** (int(kind[1]) - 1), int(blocks.numbers.min()), int(blocks.numbers.max())
    assert -half <= lowest < -half / 2 < half / 2 < highest < half


def test_plain_tensors_have_no_blocks(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "t.gguf", model_metadata(), {"matrix": stored("F16", (6, 512))})
    assert GgufFile.open(path).read_blocks("matrix") is None


@needs_compiler
@pytest.mark.parametrize("kinds", [("Q8_0",), ("Q4_1",), ("Q4_0", "Q5_1", "F16")], ids="+".join)
def test_a_quantised_file_keeps_its_values_to_the_last_bit(kinds: tuple[str, ...], tmp_path: Path) -> None:
    """Also where a matrix is made of tensors of several kinds; only plain ones are rounded."""
    tensors: dict[str, Stored | np.ndarray] = {}
    for number, (name, tensor) in enumerate(model_tensors().items()):
        kind = kinds[number % len(kinds)]
        if tensor.ndim != 2 or "blk" not in name:
            tensors[name] = tensor
        elif kind == "F16":
            tensors[name] = Stored(tensor.astype(np.float16), kind)
        else:
            tensors[name] = Stored(gguf.quants.quantize(tensor, GGMLQuantizationType[kind]), kind)
    path = write_gguf(tmp_path / "model.gguf", model_metadata(), tensors)
    config = config_from_gguf(GgufFile.open(path))
    wide, narrow = (
        load_weights(config, GgufReader(GgufFile.open(path)), jnp.dtype(jnp.float32), int8=scales)
        for scales in (None, "fine")
    )
    assert narrow.layers.qkv.dtype == jnp.int8
    for layer in range(config.num_layers):
        one, other = wide.layers.layer(layer), narrow.layers.layer(layer)
        for name in MATRICES:
            before, after = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
            if "F16" in kinds:
                assert np.abs(after - before).max() <= 0.005 * np.abs(before).max(), name
            else:
                np.testing.assert_allclose(after, before, rtol=3e-7, atol=1e-8, err_msg=name)
    np.testing.assert_array_equal(np.asarray(narrow.embed), np.asarray(wide.embed))
    np.testing.assert_array_equal(np.asarray(narrow.layers.mlp_norm), np.asarray(wide.layers.mlp_norm))


@needs_compiler
def test_coarse_scales_are_made_of_a_quantised_files_values(tmp_path: Path) -> None:
    """Where a row has terms enough, and never of the product before attention: there blocks are kept."""
    tensors: dict[str, Stored | np.ndarray] = {
        name: Stored(gguf.quants.quantize(tensor, GGMLQuantizationType.Q4_1), "Q4_1")
        if tensor.ndim == 2 and "blk" in name
        else tensor
        for name, tensor in model_tensors().items()
    }
    path = write_gguf(tmp_path / "model.gguf", model_metadata(), tensors)
    config = config_from_gguf(GgufFile.open(path))
    wide, narrow = (
        load_weights(config, GgufReader(GgufFile.open(path)), jnp.dtype(jnp.float32), int8=scales)
        for scales in (None, "coarse")
    )
    again = in_int8(wide, "coarse").layers
    numbers, scale = (np.asarray(getattr(narrow.layers, name), np.float32) for name in ("down", "down_scale"))
    assert scale.shape[-1] == 1
    assert narrow.layers.down_offset is None
    np.testing.assert_allclose(scale, again.down_scale, rtol=1e-6)
    assert np.abs(numbers - np.asarray(again.down, np.float32)).max() <= 1
    for name in ("qkv", "out", "gate_up"):  # the others have too few terms here
        before, after = (np.asarray(getattr(one.layers.layer(1), name)) for one in (wide, narrow))
        np.testing.assert_allclose(after, before, rtol=3e-7, atol=1e-8, err_msg=name)


def test_other_tensors_are_quantised_in_blocks() -> None:
    matrix = np.random.default_rng(0).standard_normal((5, 96)).astype(np.float32)
    blocks = quantized(matrix)
    assert (blocks.block, blocks.offset) == (BLOCK, None)
    back = (blocks.numbers.reshape(5, 3, 32) * blocks.scale[..., None]).reshape(5, 96)
    assert np.abs(back - matrix).max() <= 0.51 * blocks.scale.max()
