"""Products of weights in a GGUF file's blocks in AMX's tiles: to the last bit those of the same file widened to the
network's numbers, whatever block types rows have, also where parts of a row begin within a block. With the real
instructions or a shim for them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from kernels.cpu.amx import amx_library
from kernels.cpu.amx.test_amx_int8 import AT, computed, given
from kernels.cpu.amx.test_layer_ops import CONFIG, DTYPES, LAYERS, draw, layers_of
from loading.gguf.files import stored
from onepass.kernels.cpu.layer_ops import AmxLayerOps, takes_blocks
from onepass.models.gguf_matrix import OFFSET_BYTES, GgufMatrix
from onepass.models.known import known_config
from onepass.models.weights import MATRICES, Layers, Weights

pytestmark = pytest.mark.skipif(amx_library.problem() is not None, reason=str(amx_library.problem()))
HIDDEN, HEADS, MLP = 256, (2, 3, 32), 2816  # of `down` parts of 1,408 and of 704 terms are multiplied at a time
KINDS = (("Q4_K", "Q6_K"), ("Q5_K", "Q8_0"), ("Q4_0", "Q5_1"), ("Q4_1", "F16"), ("Q5_0", "BF16"), ("F32", "Q4_K"))


@pytest.fixture(autouse=True, scope="module")
def _library() -> None:
    amx_library.load_gguf()


def in_blocks(kinds: tuple[str, ...], shape: tuple[int, ...], dtype: Any, terms: int) -> tuple[GgufMatrix, jax.Array]:
    """A matrix whose rows are of these types in turn, and the same widened."""
    rows = int(np.prod(shape)) // terms
    offsets, numbers = np.empty(rows, np.uint32), np.empty(rows, np.uint8)
    parts, wide, size = [], np.empty((rows, terms), np.float32), 0
    for row in range(rows):
        kind = GGMLQuantizationType[kinds[row % len(kinds)]]
        data = stored(kind.name, (1, terms), seed=row).data
        wide[row] = dequantize(data, kind)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        offsets[row], numbers[row] = size // OFFSET_BYTES, kind
        parts.append(data.view(np.uint8).ravel())
        size += terms // block * block_bytes
    assert sum(part.size for part in parts) == size
    table = (jnp.asarray(a.reshape(shape[0], -1)) for a in (offsets, numbers))
    matrix = GgufMatrix(jnp.asarray(np.concatenate(parts)), *table, shape, np.dtype(dtype))
    return matrix, jnp.asarray(wide.reshape(shape)).astype(dtype)


def both(kinds: tuple[str, ...], dtype: Any) -> tuple[Layers, Layers]:
    heads = int(np.prod(HEADS))
    shapes = {
        "qkv": ((LAYERS, 2, 4, 32, HIDDEN), HIDDEN),
        "gate_up": ((LAYERS, 2, MLP, HIDDEN), HIDDEN),
        "down": ((LAYERS, HIDDEN, MLP), MLP),
    }
    made = {name: in_blocks(kinds, shape, dtype, terms) for name, (shape, terms) in shapes.items()}
    flat, wide = in_blocks(("Q8_0", "Q4_1"), (LAYERS, HIDDEN, heads), dtype, heads)  # no row of 256 terms
    shape = (LAYERS, HIDDEN, *HEADS)
    made["out"] = GgufMatrix(*flat.arrays, shape, flat.dtype), wide.reshape(shape)
    rest = {
        "attention_norm": draw(3, LAYERS, HIDDEN, dtype=dtype),
        "mlp_norm": draw(6, LAYERS, HIDDEN, dtype=dtype),
        "qkv_bias": draw(2, LAYERS, 2, 4, 32, dtype=dtype),
        "out_bias": draw(5, LAYERS, HIDDEN, dtype=dtype),
    }
    blocks, plain = ({name: made[name][i] for name in MATRICES} for i in (0, 1))
    return layers_of(**rest, **blocks), layers_of(**rest, **plain)


@DTYPES
@pytest.mark.parametrize("kinds", KINDS, ids="+".join)
def test_products_are_those_of_the_widened_file_to_the_last_bit(kinds: tuple[str, ...], dtype: Any) -> None:
    stream, attended = given(HIDDEN, 40, dtype)
    layers = both(kinds, dtype)
    assert [AmxLayerOps().left_to_xla(CONFIG, one) for one in layers] == [{}, {}]
    result, wanted = (computed(AmxLayerOps(), one, stream, attended, 37) for one in layers)
    for name, expected in wanted.items():
        assert np.isfinite(np.asarray(expected, np.float32)).all(), name
        np.testing.assert_array_equal(np.asarray(result[name]), np.asarray(expected), err_msg=name)


def test_another_layers_blocks_are_not_read() -> None:
    layers, _ = both(KINDS[0], jnp.bfloat16)
    stream, attended = given(HIDDEN, 5, jnp.bfloat16)
    before = computed(AmxLayerOps(), layers, stream, attended, 5)
    first = int(layers.down.offsets[AT + 1, 0]) * OFFSET_BYTES
    object.__setattr__(layers.down, "blocks", layers.down.blocks.at[first:].set(7))
    after = computed(AmxLayerOps(), layers, stream, attended, 5)
    np.testing.assert_array_equal(after["mlp"], before["mlp"])
    object.__setattr__(layers.down, "blocks", layers.down.blocks.at[:first].set(7))
    assert not np.array_equal(computed(AmxLayerOps(), layers, stream, attended, 5)["mlp"], before["mlp"])


@DTYPES
@pytest.mark.parametrize("rows", [1600, 100])  # in tiles; 100 rows are none, so the general kernel multiplies them
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_vocabulary_of_a_table_in_blocks(rows: int, with_bias: bool, dtype: Any) -> None:
    """The general kernel has the file's numbers, tiles those rounded to the network's."""
    table, wide = in_blocks(("Q6_K", "Q4_K"), (1, rows, 256), dtype if rows % 32 == 0 else jnp.float32, 256)
    table = GgufMatrix(*table.arrays, (rows, 256), np.dtype(dtype))
    hidden, bias = draw(1, 40, 256, dtype=dtype), draw(2, rows, dtype=dtype) if with_bias else None
    logits = np.asarray(hidden, np.float64) @ np.asarray(wide[0], np.float64).T
    logits += 0 if bias is None else np.asarray(bias, np.float64)
    weights = Weights(table, None, None, None, bias)
    found = AmxLayerOps().over_vocabulary(known_config("smollm2-135m"), weights, hidden, jnp.int32(37))
    total, largest, row = np.asarray(found)[:37].T
    np.testing.assert_allclose(total, np.logaddexp.reduce(logits[:37], axis=1), rtol=1e-5)
    np.testing.assert_allclose(largest, logits[:37].max(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(row, logits[:37].argmax(axis=1))
    assert not np.asarray(found)[37:].any()
    alone = AmxLayerOps().over_vocabulary(known_config("smollm2-135m"), weights, hidden[5:6], jnp.int32(1))
    np.testing.assert_array_equal(alone[0], found[5], "whoever its neighbours are")


def test_a_logit_that_is_no_number_stays_visible() -> None:
    table, _ = in_blocks(("Q8_0",), (1, 64, 256), jnp.bfloat16, 256)
    table = GgufMatrix(*table.arrays, (64, 256), np.dtype(jnp.bfloat16))
    for wrong in (np.nan, np.inf):
        hidden = draw(1, 2, 256, dtype=jnp.bfloat16).at[0, 3].set(wrong)
        weights = Weights(table, None, None, None)
        found = AmxLayerOps().over_vocabulary(known_config("smollm2-135m"), weights, hidden, jnp.int32(2))
        assert np.isnan(found[0, 0])
        assert np.isfinite(found[1]).all()


def test_models_of_other_sizes_are_refused_before_they_are_loaded() -> None:
    config = known_config("smollm2-135m")
    assert takes_blocks(config)
    for changes in ({"mlp_bias": True}, {"head_dim": 80}, {"mlp_size": 1000}, {"hidden_size": 48}):
        assert not takes_blocks(config.__class__(**{**vars(config), **changes}))
