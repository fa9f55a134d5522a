"""Quantised checkpoints without PyTorch: packed by hand and read back; other formats are refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoints import make_checkpoint
from onepass.errors import BadCheckpoint, OnepassError, UnsupportedModel
from onepass.loading.configuration import open_config
from onepass.loading.model import open_model
from onepass.loading.quantized.packed_bits import unpack, unpack_range
from onepass.loading.quantized.reader import ROWS_ELEMENTS
from onepass.loading.quantized.scheme import quantization_scheme

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
FP8 = {"quant_method": "fp8", "weight_block_size": [32, 32]}
WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel"}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}},
}
MODULE = "model.layers.0.mlp.down_proj"


def gptq_tensors(module: str, numbers: np.ndarray, scale: float = 0.5) -> dict[str, np.ndarray]:
    """Numbers [in, out] of 4 bits with zero point 8, in groups of 32."""
    size_in, size_out = numbers.shape
    words = np.zeros((size_in // 8, size_out), np.uint32)
    for row in range(size_in):
        words[row // 8] |= numbers[row].astype(np.uint32) << np.uint32(4 * (row % 8))
    return {
        f"{module}.qweight": words.view(np.int32),
        f"{module}.qzeros": np.full((size_in // 32, size_out // 8), 0x88888888, np.uint32).view(np.int32),
        f"{module}.scales": np.full((size_in // 32, size_out), scale, np.float16),
    }


@pytest.fixture
def quantize(tmp_path: Path) -> Callable[..., Path]:
    """A folder whose first down projection is replaced."""

    def write(config: dict[str, Any], tensors: dict[str, np.ndarray], name: str = "llama2") -> Path:
        folder = make_checkpoint(tmp_path, name)
        kept = load_file(folder / "model.safetensors")
        del kept[f"{MODULE}.weight"]
        save_file(kept | tensors, folder / "model.safetensors")
        raw = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**raw, "quantization_config": config}))
        return folder

    return write


def read_down(folder: Path) -> np.ndarray:
    reader = open_model(str(folder)).reader
    assert reader is not None
    return reader.read(f"{MODULE}.weight")


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_numbers_are_unpacked_from_words(bits: int) -> None:
    numbers = np.random.default_rng(0).integers(0, 1 << bits, 64)
    whole = sum(int(number) << (bits * place) for place, number in enumerate(numbers))
    words = np.frombuffer(whole.to_bytes(8 * bits, "little"), "<i4")
    assert unpack(words, bits).tolist() == numbers.tolist()
    for wanted in (slice(0, 64), slice(5, 7), slice(31, 33), slice(32, 64)):
        assert unpack_range(words, bits, wanted).tolist() == numbers[wanted].tolist()


def test_a_matrix_is_read_in_parts(quantize: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same however many rows are dequantised at once."""
    numbers = np.random.default_rng(1).integers(0, 16, (96, 64))
    model = open_model(str(quantize(GPTQ, gptq_tensors(MODULE, numbers))))
    assert model.quantization == "GPTQ, 4 bits, groups of 32"
    assert model.reader is not None
    expected = (numbers.T - 8) * np.float32(0.5)
    assert expected.size < ROWS_ELEMENTS
    for rows in (7 * 96, ROWS_ELEMENTS):  # the small one first: fresh memory may hold an earlier result
        monkeypatch.setattr("onepass.loading.quantized.reader.ROWS_ELEMENTS", rows)
        np.testing.assert_array_equal(model.reader.read(f"{MODULE}.weight"), expected)


def test_activation_scales_are_no_part_of_the_model(quantize: Callable[..., Path]) -> None:
    tensors: dict[str, np.ndarray] = {
        f"{MODULE}.weight": np.full((64, 96), 3, np.int8),
        f"{MODULE}.weight_scale": np.full((64, 1), 0.25, np.float32),
        f"{MODULE}.input_scale": np.ones(1, np.float32),
    }
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    groups = {"group_0": {"targets": [r"re:.*down_proj"], "weights": weights}}
    folder = quantize({**COMPRESSED, "format": "int-quantized", "config_groups": groups}, tensors)
    reader = open_model(str(folder)).reader
    assert reader is not None
    assert f"{MODULE}.input_scale" not in reader.tensors()
    assert (reader.read(f"{MODULE}.weight") == 0.75).all()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method 'bitsandbytes' is not supported"),
        ({"bits": 4}, "quant_method None is not supported; supported: fp8, gptq, awq, compressed-tensors"),
        ({**GPTQ, "bits": 5}, "GPTQ bits must be one of 2, 3, 4, 8; got 5"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "GPTQ checkpoint_format 'marlin' is not supported"),
        ({**GPTQ, "dynamic": {r"+:.*\.0\..*": {"bits": 8}}}, "GPTQ with other bits for some modules"),
        ({**GPTQ, "pack_dtype": "int16"}, "GPTQ pack_dtype must be int32; got 'int16'"),
        ({**GPTQ, "group_size": 0}, "GPTQ group_size must be -1 or above 0; got 0"),
        ({**AWQ, "version": "gemv"}, "AWQ version 'gemv' is not supported; supported: gemm"),
        ({**AWQ, "bits": 8}, "AWQ bits must be 4; got 8"),
        ({**AWQ, "zero_point": False}, "AWQ without zero points"),
        ({**FP8, "fmt": "e5m2"}, "fmt must be 'e4m3'; got 'e5m2'"),
        ({**FP8, "scale_fmt": "ue8m0"}, "scale_fmt 'ue8m0' is not supported"),
        ({**FP8, "weight_block_size": [128]}, "weight_block_size must be [rows, columns]; got [128]"),
        ({**COMPRESSED, "format": "marlin-24"}, "compressed-tensors format 'marlin-24' is not supported"),
        ({**COMPRESSED, "kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme is not supported"),
        ({**COMPRESSED, "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity 'sparse-24-bitmask'"),
        ({**COMPRESSED, "transform_config": {"config_groups": {"R1": {}}}}, "transform_config"),
        ({**COMPRESSED, "config_groups": {}}, "needs config_groups"),
        (
            {**COMPRESSED, "config_groups": {"g": {"targets": ["Linear"], "weights": {**WEIGHTS, "num_bits": 4}}}},
            "weights of 4 bits (float)",
        ),
    ],
    ids=str,
)
def test_what_is_not_read_is_refused_by_name(config: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        quantization_scheme({"quantization_config": config})
    assert says in str(caught.value)


def test_planning_refuses_it_too(quantize: Callable[..., Path]) -> None:
    folder = quantize({"quant_method": "hqq"}, {})
    for opened in (open_model, open_config):
        with pytest.raises(UnsupportedModel, match="'hqq' is not supported"):
            opened(str(folder))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {f"{MODULE}.scales": np.ones((3, 32), np.float16)},
            "scales must be [3, 64] in F16 or BF16 or F32; it is [3, 32]",
        ),
        ({f"{MODULE}.qzeros": np.ones((2, 8), np.int32)}, "qzeros must be [3, 8] in I32; it is [2, 8]"),
        ({f"{MODULE}.g_idx": np.full(96, 3, np.int32)}, "g_idx must name groups 0 to 2; it has 3 to 3"),
        ({f"{MODULE}.qweight": np.ones((12, 64), np.float32)}, "qweight must be an I32 matrix"),
    ],
    ids=["scales", "zeros", "groups", "dtype"],
)
def test_damaged_parts_say_wanted_and_got(
    quantize: Callable[..., Path], change: dict[str, np.ndarray], says: str
) -> None:
    tensors = gptq_tensors(MODULE, np.zeros((96, 64), np.int64)) | change
    folder = quantize(GPTQ, tensors)
    with pytest.raises(BadCheckpoint) as caught:
        read_down(folder)
    assert says in str(caught.value)


def test_a_scale_of_another_block_size_is_refused(quantize: Callable[..., Path]) -> None:
    tensors = {
        f"{MODULE}.weight": np.zeros((64, 96), np.int8),
        f"{MODULE}.weight_scale_inv": np.ones((2, 2), np.float32),
    }
    with pytest.raises(
        OnepassError, match=r"must hold \[2, 3\] scales .* in blocks of \[32, 32\]; it is \[2, 2\] in F32"
    ):
        open_model(str(quantize(FP8, tensors)))
