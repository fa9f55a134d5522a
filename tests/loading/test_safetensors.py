"""Safetensors folders: one file or many, every damage named, nothing unpickled."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from checkpoints import make_checkpoint, random_tensors
from onepass.errors import BadCheckpoint, UnsupportedModel
from onepass.loading.safetensors import SafetensorsReader
from onepass.loading.tensor_reader import TensorInfo

TENSORS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([1.5, -2.0], np.float16),
    "c": np.array([[3.25]], ml_dtypes.bfloat16),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path


def test_tensors_are_listed_with_shape_and_dtype(folder: Path) -> None:
    assert SafetensorsReader(folder).tensors() == {
        "a": TensorInfo((2, 3), "F32"),
        "b": TensorInfo((2,), "F16"),
        "c": TensorInfo((1, 1), "BF16"),
    }


def test_tensors_are_read_as_they_were_written(folder: Path) -> None:
    reader = SafetensorsReader(folder)
    for name, tensor in TENSORS.items():
        read = reader.read(name)
        assert read.dtype == tensor.dtype
        assert (read == tensor).all()
    reader.close()


def test_a_scalar_and_an_empty_tensor_are_read(tmp_path: Path) -> None:
    save_file({"s": np.array(2.0, np.float32), "e": np.zeros((0, 4), np.float32)}, tmp_path / "model.safetensors")
    reader = SafetensorsReader(tmp_path)
    assert reader.read("s") == 2.0
    assert reader.read("e").shape == (0, 4)


def test_reading_holds_no_copy_of_the_file(folder: Path) -> None:
    """What is read is a view of the mapped file."""
    read = SafetensorsReader(folder).read("a")
    assert not read.flags.owndata
    assert isinstance(read, np.memmap) or read.base is not None


@pytest.mark.parametrize("shards", [1, 3])
def test_one_file_and_many_hold_the_same_tensors(shards: int, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama2", shards=shards)
    reader = SafetensorsReader(tmp_path)
    written = random_tensors(json.loads((tmp_path / "config.json").read_text()), 0, "float32")
    assert reader.tensors().keys() == written.keys()
    for name, tensor in written.items():
        assert (reader.read(name) == tensor).all()


@pytest.mark.parametrize("kept", [0, 7, 8, 40, 200, -1, -4])
def test_a_file_cut_short_is_noticed_when_it_is_opened(folder: Path, kept: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors is cut short"):
        SafetensorsReader(folder)


def write_header(folder: Path, header: object, data: bytes = b"\0" * 24) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"not json", "no readable safetensors header"),
        (b"\xff\xfe", "no readable safetensors header"),
        ([1, 2], "no readable safetensors header"),
        ({"a": 5}, "no readable safetensors header"),
        ({"a": {"dtype": "F32"}}, "no readable safetensors header"),
        ({"a": {**ENTRY, "data_offsets": [0]}}, "no readable safetensors header"),
        ({"a": {**ENTRY, "shape": [2, 4]}}, "'a' in model.safetensors has 24 bytes for shape [2, 4]"),
        ({"a": {**ENTRY, "data_offsets": [0, 20]}}, "'a' in model.safetensors has 20 bytes"),
        ({"a": {**ENTRY, "data_offsets": [24, 48]}}, "cut short: tensor 'a'"),
        ({"a": {**ENTRY, "data_offsets": [-24, 0]}}, "cut short: tensor 'a'"),
    ],
    ids=str,
)
def test_a_damaged_header_is_named(tmp_path: Path, header: object, says: str) -> None:
    write_header(tmp_path, header)
    with pytest.raises(BadCheckpoint) as caught:
        SafetensorsReader(tmp_path)
    assert says in str(caught.value)


def test_whole_number_tensors_are_listed_but_not_read_as_weights(tmp_path: Path) -> None:
    save_file({"ids": np.arange(4)}, tmp_path / "model.safetensors")
    reader = SafetensorsReader(tmp_path)
    assert reader.tensors()["ids"].dtype == "I64"
    with pytest.raises(BadCheckpoint, match="'ids' must be one of F32, F16, BF16; it is I64"):
        reader.read("ids")


def test_an_index_that_names_missing_files_is_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama2", shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(BadCheckpoint, match=r"not there: model-00002-of-00003\.safetensors$"):
        SafetensorsReader(tmp_path)


def change_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"] = change(index["weight_map"])
    path.write_text(json.dumps(index))


def test_an_index_that_contradicts_its_files_is_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama2", shards=2)
    change_index(tmp_path, lambda files: {**files, "model.norm.weight": "model-00001-of-00002.safetensors"})
    with pytest.raises(
        BadCheckpoint, match=r"puts tensor 'model\.norm\.weight' in model-00001.*; it is in model-00002"
    ):
        SafetensorsReader(tmp_path)


def test_an_index_that_names_a_tensor_of_no_file_is_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama2", shards=2)
    change_index(tmp_path, lambda files: {**files, "ghost": "model-00001-of-00002.safetensors"})
    with pytest.raises(BadCheckpoint, match=r"puts tensor 'ghost' in model-00001.*; it is in no file"):
        SafetensorsReader(tmp_path)


@pytest.mark.parametrize("files", [{}, [], None, {"a": 5}], ids=str)
def test_an_index_without_a_map_is_refused(tmp_path: Path, files: object) -> None:
    make_checkpoint(tmp_path, "llama2", shards=2)
    change_index(tmp_path, lambda _: files)
    with pytest.raises(BadCheckpoint, match="index"):
        SafetensorsReader(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "5"])
def test_an_index_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    make_checkpoint(tmp_path, "llama2", shards=2)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(BadCheckpoint, match=r"index\.json must be a JSON object"):
        SafetensorsReader(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama2", shards=2)
    save_file(TENSORS, tmp_path / "model-00001-of-00002.safetensors")
    save_file(TENSORS, tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(BadCheckpoint, match=r"'a' is in both model-00001-of-00002\.safetensors and model-00002"):
        SafetensorsReader(tmp_path)


def test_pickles_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(UnsupportedModel, match=r"found only pytorch_model\.bin, which are pickles and are not read"):
        SafetensorsReader(tmp_path)


def test_a_folder_without_weights_says_what_it_must_hold(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"must hold model\.safetensors or model\.safetensors\.index\.json"):
        SafetensorsReader(tmp_path)
