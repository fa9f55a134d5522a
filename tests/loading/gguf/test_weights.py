"""Weights of a GGUF file kept in its own blocks: the values of the widened file in the memory of the file."""

from pathlib import Path

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from loading.gguf.files import Stored, model_metadata, model_tensors, stored, write_gguf
from onepass.kernels.cpu import build
from onepass.kernels.cpu.int8_dot import int8_dot
from onepass.kernels.cpu.line_ops import CpuLayerOps
from onepass.loading.gguf.config import config_from_gguf
from onepass.loading.gguf.file import GgufFile
from onepass.loading.gguf.reader import GgufReader
from onepass.loading.load_weights import load_weights
from onepass.models.gguf_matrix import GgufMatrix
from onepass.models.known import known_config
from onepass.models.weights import MATRICES, Weights

pytestmark = pytest.mark.skipif(build.cpu_problem() is not None, reason=str(build.cpu_problem()))
FLOAT32 = jnp.dtype(jnp.float32)


def quantised_file(path: Path, kinds: tuple[str, ...], architecture: str = "llama") -> Path:
    """Matrices of several block types, in turn: also within one matrix of the network."""
    tensors: dict[str, Stored | np.ndarray] = {}
    for number, (name, tensor) in enumerate(model_tensors().items()):
        kind = kinds[number % len(kinds)]
        if tensor.ndim != 2:
            tensors[name] = tensor
        elif kind == "F16":
            tensors[name] = Stored(tensor.astype(np.float16), kind)
        else:
            tensors[name] = Stored(gguf.quants.quantize(tensor, GGMLQuantizationType[kind]), kind)
    return write_gguf(path, model_metadata(), tensors)


def both(path: Path) -> tuple[Weights, Weights]:
    config = config_from_gguf(GgufFile.open(path))
    wide, kept = (
        load_weights(config, GgufReader(GgufFile.open(path)), FLOAT32, keep_blocks=keep) for keep in (False, True)
    )
    return wide, kept


@pytest.fixture(autouse=True, scope="module")
def _library() -> None:
    build.load_cpu("gguf")


@pytest.mark.parametrize("kinds", [("Q8_0",), ("Q4_1", "Q8_0"), ("Q4_0", "Q5_1", "F16", "Q5_0")], ids="+".join)
def test_rows_of_every_matrix_are_those_of_the_widened_file(kinds: tuple[str, ...], tmp_path: Path) -> None:
    wide, kept = both(quantised_file(tmp_path / "m.gguf", kinds))
    assert kept.in_gguf_blocks
    assert not wide.in_gguf_blocks
    for name in MATRICES:
        matrix, array = getattr(kept.layers, name), np.asarray(getattr(wide.layers, name))
        assert matrix.shape == array.shape
        for layer in range(array.shape[0]):
            rows = array[layer].reshape(matrix.offsets.shape[1], -1)
            one = GgufMatrix(matrix.blocks, matrix.offsets[layer:][:1], matrix.kinds[layer:][:1], rows.shape)
            np.testing.assert_array_equal(np.asarray(one.rows(jnp.arange(len(rows)))), rows, err_msg=name)
    np.testing.assert_array_equal(np.asarray(kept.layers.mlp_norm), np.asarray(wide.layers.mlp_norm))
    tokens = jnp.asarray([3, 0, 7, 3])
    np.testing.assert_array_equal(np.asarray(kept.embed.rows(tokens)), np.asarray(wide.embed)[np.asarray(tokens)])


def test_the_memory_is_that_of_the_file(tmp_path: Path) -> None:
    path = quantised_file(tmp_path / "m.gguf", ("Q4_0",))
    wide, kept = both(path)
    size = sum(array.nbytes for array in jax.tree.leaves(kept))
    tables = sum(matrix.offsets.nbytes + matrix.kinds.nbytes for matrix in _matrices(kept))
    assert size - tables <= path.stat().st_size
    assert size < sum(array.nbytes for array in jax.tree.leaves(wide)) / 3


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K", "Q5_0", "BF16", "F32"])
@pytest.mark.parametrize("tokens", [1, 37])
def test_products_are_those_of_the_widened_matrix(kind: str, tokens: int, tmp_path: Path) -> None:
    file = GgufFile.open(write_gguf(tmp_path / "t.gguf", model_metadata(), {"matrix": stored(kind, (50, 512))}))
    number, row_bytes = file.stored_as("matrix")
    blocks = jnp.asarray(file.read_stored("matrix").reshape(-1))
    offsets = jnp.arange(50, dtype=jnp.uint32)[None] * (row_bytes // 2)
    matrix = GgufMatrix(blocks, offsets, jnp.full((1, 50), number, jnp.uint8), (50, 512))
    x = np.random.default_rng(1).standard_normal((tokens, 512)).astype(np.float32)
    wanted = x.astype(np.float64) @ file.read("matrix").astype(np.float64).T
    weights = Weights(matrix, None, None, None)
    result = CpuLayerOps().over_vocabulary(known_config("smollm2-135m"), weights, jnp.asarray(x), jnp.int32(tokens))
    total, largest, row = np.asarray(result).T
    np.testing.assert_allclose(total, np.logaddexp.reduce(wanted, axis=1), rtol=1e-5)
    np.testing.assert_allclose(largest, wanted.max(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(row, wanted.argmax(axis=1))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "F16"])
def test_products_of_blocks_and_quantized_activations(kind: str, tmp_path: Path) -> None:
    """Whole-number activations are their own quantised ones, so nothing is lost: up to float32's own sums the result is
    that of the widened matrix. Of other activations some is lost."""
    build.load_cpu("gguf_dot")
    levels, tokens, rng = 2 ** (int8_dot().activation_bits - 1) - 1, 37, np.random.default_rng(1)
    file = GgufFile.open(write_gguf(tmp_path / "t.gguf", model_metadata(), {"matrix": stored(kind, (50, 512))}))
    number, row_bytes = file.stored_as("matrix")
    blocks = jnp.asarray(file.read_stored("matrix").reshape(-1))
    offsets = jnp.arange(50, dtype=jnp.uint32)[None] * (row_bytes // 2)
    arrays = (blocks, offsets, jnp.full((1, 50), number, jnp.uint8))

    def multiply(target: str, x: np.ndarray) -> np.ndarray:
        stream = jax.ShapeDtypeStruct((3, 50, 16), jnp.float32)
        call = jax.ffi.ffi_call(target, (stream, jax.ShapeDtypeStruct((3, 512, 16), jnp.float32)))
        none, zero = jnp.zeros((0,)), jnp.zeros(stream.shape)
        out, _ = call(jnp.asarray(x), jnp.int32(tokens), *arrays, jnp.zeros((1,), jnp.int32), none, zero)
        return np.asarray(out).transpose(0, 2, 1).reshape(48, 50)[:tokens]

    x = rng.integers(-levels, levels + 1, (tokens, 512)).astype(np.float32)
    x[:, ::32] = levels
    wanted = x.astype(np.float64) @ file.read("matrix").astype(np.float64).T
    assert np.abs(multiply("onepass_cpu_add_gguf_dot_f32", x) - wanted).max() <= 1e-5 * np.abs(wanted).max()
    x = rng.standard_normal((tokens, 512)).astype(np.float32)
    wide, narrow = (multiply(f"onepass_cpu_add_gguf_{way}f32", x) for way in ("", "dot_"))
    assert np.abs(narrow - wide).mean() <= 0.04 * np.abs(wide).mean()
    assert np.array_equal(narrow, wide) == (kind == "F16"), "rows of floats are multiplied as such"


def _matrices(weights: Weights) -> list[GgufMatrix]:
    return [weights.embed, *(getattr(weights.layers, name) for name in MATRICES)]
