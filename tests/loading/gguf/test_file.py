"""A GGUF file reads as the `reader` package reads it, only faster; and a damaged one is refused in words."""

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType

from loading.gguf.files import model_metadata, stored, write_gguf
from onepass.errors import BadCheckpoint, ModelError, ModelNotFound, UnsupportedModel
from onepass.loading.gguf.file import GgufFile
from onepass.loading.gguf.header import BLOCKS, SUPPORTED_TYPES

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "tokenizer.ggml.tokens": ["a", "é", "字"],
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two tensors, both a whole number of alignments long, so that every byte of the file matters."""
    return write_gguf(
        tmp_path / "small.gguf", METADATA, {"one": stored("F32", (2, 8)), "two": stored("Q8_0", (16, 32))}
    )


def package_arrays(path: Path) -> dict[str, np.ndarray]:
    return {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}


def assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    wide = ours.astype(np.float32)
    assert np.isfinite(wide).all()
    assert wide.shape == theirs.shape
    assert wide.tobytes() == theirs.astype(np.float32).tobytes()


@pytest.mark.parametrize("kind", SUPPORTED_TYPES)
def test_every_type_reads_as_the_gguf_package_reads_it(kind: str, tmp_path: Path) -> None:
    tensors = {"matrix": stored(kind, (6, 512)), "cube": stored(kind, (2, 3, 256), seed=1), "row": stored(kind, (256,))}
    path = write_gguf(tmp_path / "t.gguf", METADATA, tensors)
    file = GgufFile.open(path)
    expected = package_arrays(path)
    assert {name: (info.shape, info.dtype) for name, info in file.tensors.items()} == {
        "matrix": ((6, 512), kind),
        "cube": ((2, 3, 256), kind),
        "row": ((256,), kind),
    }
    for name, array in expected.items():
        assert_same_bits(file.read(name), array)


@pytest.mark.parametrize("kind", SUPPORTED_TYPES)
def test_types_are_as_the_gguf_package_defines_them(kind: str) -> None:
    number = GGMLQuantizationType[kind]
    assert BLOCKS[kind] == (number.value, *gguf.GGML_QUANT_SIZES[number])


@pytest.mark.parametrize("kind", [kind for kind in SUPPORTED_TYPES if kind.startswith("Q")])
def test_without_a_compiler_tensors_read_the_same(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "t.gguf", METADATA, {"matrix": stored(kind, (6, 512))})
    here = GgufFile.open(path).read("matrix")
    monkeypatch.setattr("onepass.loading.gguf.file.dequantizer", lambda: None)
    assert_same_bits(here, GgufFile.open(path).read("matrix"))


def test_quantised_tensors_are_float32_and_plain_ones_stay_as_stored(tmp_path: Path) -> None:
    kinds = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "Q4_K": np.float32}
    path = write_gguf(tmp_path / "t.gguf", METADATA, {kind: stored(kind, (2, 256)) for kind in kinds})
    file = GgufFile.open(path)
    assert {kind: file.read(kind).dtype for kind in kinds} == {kind: np.dtype(dtype) for kind, dtype in kinds.items()}


def test_metadata_of_every_kind_becomes_a_python_value(tmp_path: Path) -> None:
    whole = dict.fromkeys(("UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "UINT64", "INT64"), 1)
    values = whole | {"INT8": -7, "UINT64": 2**63, "FLOAT32": 0.5, "FLOAT64": 0.1, "BOOL": True, "STRING": "ü 字"}
    arrays = {"strings": ["", "a b", "😀"], "ints": [1, -2, 3], "floats": [0.5, -1.5], "flags": [True, False]}
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for name, value in values.items():
        writer.add_key_value(name, value, GGUFValueType[name])
    for name, items in arrays.items():
        writer.add_array(name, items)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    metadata = GgufFile.open(tmp_path / "m.gguf").metadata
    assert metadata == {"general.architecture": "llama"} | values | arrays
    assert {type(metadata[name]) for name in whole} == {int}
    assert metadata["BOOL"] is True


def test_smollm2_reads_as_the_gguf_package_reads_it(smollm2_gguf: Path) -> None:
    wanted = [
        "token_embd.weight",
        "output_norm.weight",
        "blk.0.attn_q.weight",
        "blk.17.ffn_down.weight",
        "blk.29.attn_v.weight",
    ]
    file, reader = GgufFile.open(smollm2_gguf), gguf.GGUFReader(smollm2_gguf)
    theirs = {t.name: t for t in reader.tensors}
    assert list(file.tensors) == list(theirs)
    assert {file.tensors[name].dtype for name in wanted} == {"Q8_0", "Q4_1", "F32"}
    for name in wanted:
        assert_same_bits(file.read(name), gguf.quants.dequantize(theirs[name].data, theirs[name].tensor_type))
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type", "llama.rope.freq_base"):
        assert file.metadata[key] == reader.fields[key].contents()


def test_the_header_of_a_real_model_is_read_many_times_as_fast_as_by_the_library(smollm2_gguf: Path) -> None:
    def seconds(read: Callable[[Path], object]) -> float:
        start = time.perf_counter()
        read(smollm2_gguf)
        return time.perf_counter() - start

    ours, theirs = (min(seconds(read) for _ in range(3)) for read in (GgufFile.open, gguf.GGUFReader))
    assert ours < theirs / 3, "about 0.1 s against 1 s"


def test_arrays_outlive_the_file(small: Path) -> None:
    file = GgufFile.open(small)
    array = file.read("one")
    kept = array.copy()
    file.close()
    assert np.array_equal(array, kept)


def test_version_2_is_read_like_version_3(small: Path) -> None:
    content = bytearray(small.read_bytes())
    content[4:8] = struct.pack("<I", 2)
    small.write_bytes(content)
    assert GgufFile.open(small).metadata["llama.block_count"] == 1


@pytest.mark.parametrize("version", [struct.pack("<I", 1), struct.pack("<I", 4), struct.pack(">I", 3)])
def test_another_version_or_byte_order_is_not_supported(version: bytes, small: Path) -> None:
    content = bytearray(small.read_bytes())
    content[4:8] = version
    small.write_bytes(content)
    with pytest.raises(UnsupportedModel, match="supported: versions 2 and 3, little-endian"):
        GgufFile.open(small)


def test_a_file_that_is_not_gguf_says_what_it_starts_with(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(BadCheckpoint, match=r"must start with b'GGUF'; it starts with b'PK"):
        GgufFile.open(tmp_path / "x.gguf")
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(BadCheckpoint, match="empty"):
        GgufFile.open(tmp_path / "empty.gguf")
    with pytest.raises(ModelNotFound, match=r"none\.gguf"):
        GgufFile.open(tmp_path / "none.gguf")


def test_a_file_cut_short_anywhere_is_refused(small: Path, tmp_path: Path) -> None:
    content = small.read_bytes()
    assert GgufFile.open(small).read("two").shape == (16, 32)
    for length in range(1, len(content)):
        (tmp_path / "cut.gguf").write_bytes(content[:length])
        with pytest.raises(BadCheckpoint):
            GgufFile.open(tmp_path / "cut.gguf")


@pytest.mark.parametrize("damage", [b"\xff", b"\x00", b"\x7f", b"\xff" * 8])
def test_damage_is_an_error_of_ours_or_harmless_but_never_a_crash(damage: bytes, small: Path, tmp_path: Path) -> None:
    content = small.read_bytes()
    refused = []
    for place in range(len(content) - 64 - 544):  # the header: before the two tensors
        (tmp_path / "hurt.gguf").write_bytes(content[:place] + damage + content[place + len(damage) :])
        try:
            file = GgufFile.open(tmp_path / "hurt.gguf")
            assert all(file.read(name).size for name in file.tensors)
        except ModelError as error:
            refused.append(str(error))
    assert len(refused) > 20
    assert max(len(message) for message in refused) < 400


@pytest.mark.parametrize(("place", "what"), [(8, "tensors"), (16, "metadata keys")])
def test_an_absurd_count_is_refused_before_anything_is_made_of_it(place: int, what: str, small: Path) -> None:
    content = bytearray(small.read_bytes())
    content[place : place + 8] = struct.pack("<Q", 2**60)
    small.write_bytes(content)
    with pytest.raises(BadCheckpoint, match=f"announces 1,152,921,504,606,846,976 {what}, but only"):
        GgufFile.open(small)


def test_a_tensor_type_that_is_not_supported_lists_those_that_are(tmp_path: Path) -> None:
    size = gguf.GGML_QUANT_SIZES[GGMLQuantizationType.Q3_K][1]
    writer = gguf.GGUFWriter(tmp_path / "q3.gguf", "llama")
    writer.add_tensor("w", np.zeros((4, size), np.uint8), raw_dtype=GGMLQuantizationType.Q3_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match=r"'w' of q3.gguf has type Q3_K; supported: F32, F16, BF16, Q8_0.* Q6_K"):
        GgufFile.open(tmp_path / "q3.gguf")


def test_a_tensor_that_is_not_there_is_named(small: Path) -> None:
    with pytest.raises(BadCheckpoint, match="no tensor 'three'"):
        GgufFile.open(small).read("three")


def test_another_alignment_is_honoured(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_custom_alignment(256)
    arrays = {name: np.arange(5, dtype=np.float32) + n for n, name in enumerate("abc")}
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile.open(tmp_path / "a.gguf")
    assert all(np.array_equal(file.read(name), array) for name, array in arrays.items())


def test_the_metadata_of_a_model_comes_back_as_it_was_written(tmp_path: Path) -> None:
    metadata = model_metadata("qwen3")
    read = GgufFile.open(write_gguf(tmp_path / "m.gguf", metadata, {})).metadata
    assert read == {key: np.float32(value).item() if type(value) is float else value for key, value in metadata.items()}
