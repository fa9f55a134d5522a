"""Safetensors folders as a `TensorReader`: one file, or many with an index. Nothing is unpickled.

Which tensors a model needs, and putting them on the device, is `load_weights`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from onepass.errors import BadCheckpoint, UnsupportedModel
from onepass.loading.tensor_reader import TensorInfo

FLOATS: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
# What quantised checkpoints are made of besides; none of these is a weight as it stands.
NUMBERS: dict[str, Any] = FLOATS | {
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "I8": np.int8,
    "U8": np.uint8,
    "I32": np.int32,
    "I64": np.int64,
}
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class SafetensorsReader:
    """Tensors of a Hugging Face folder, read from memory-mapped files one at a time."""

    def __init__(self, folder: Path, single: str = SINGLE) -> None:
        """`single` is the only file's name, where there is no index."""
        self._headers = {path: _header(path) for path in _files(folder, single)}
        self._where: dict[str, Path] = {}
        for path, (_, header) in self._headers.items():
            for name in header:
                if name in self._where:
                    raise BadCheckpoint(f"tensor {name!r} is in both {self._where[name].name} and {path.name}")
                self._where[name] = path
        if single == SINGLE:
            _check_index(folder, self._where)
        self._maps = {path: np.memmap(path, np.uint8, "r") for path in self._headers}

    def tensors(self) -> Mapping[str, TensorInfo]:
        return {
            name: TensorInfo(tuple(entry["shape"]), entry["dtype"])
            for _, header in self._headers.values()
            for name, entry in header.items()
        }

    def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        """A view of the file: only what is used of it is read from the disk."""
        dtype = self._headers[self._where[name]][1][name]["dtype"]
        if dtype not in FLOATS:
            raise BadCheckpoint(f"tensor {name!r} must be one of {', '.join(FLOATS)}; it is {dtype}")
        return self.stored(name, index)

    def stored(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        """The same of a tensor in any of `NUMBERS`."""
        path = self._where[name]
        start, header = self._headers[path]
        entry = header[name]
        if entry["dtype"] not in NUMBERS:
            raise BadCheckpoint(f"tensor {name!r} must be one of {', '.join(NUMBERS)}; it is {entry['dtype']}")
        begin, end = entry["data_offsets"]
        raw = self._maps[path][start + begin : start + end]
        return raw.view(NUMBERS[entry["dtype"]]).reshape(entry["shape"])[index]

    def read_blocks(self, name: str) -> None:
        """No tensor here is in blocks."""

    def close(self) -> None:
        self._maps.clear()


def _files(folder: Path, single: str) -> list[Path]:
    index = folder / INDEX
    if single == SINGLE and index.exists():
        paths = [folder / name for name in sorted(set(_weight_map(folder).values()))]
        missing = [path.name for path in paths if not path.exists()]
        if missing or not paths:
            raise BadCheckpoint(f"{INDEX} names files that are not there: {', '.join(missing) or 'none at all'}")
        return paths
    if (folder / single).exists():
        return [folder / single]
    others = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    found = f"found only {', '.join(others)}, which are pickles and are not read" if others else "found neither"
    wanted = f"{SINGLE} or {INDEX}" if single == SINGLE else single
    raise UnsupportedModel(f"{folder.name} must hold {wanted}; {found}")


def _check_index(folder: Path, where: Mapping[str, Path]) -> None:
    if not (folder / INDEX).exists():
        return
    for name, file in _weight_map(folder).items():
        if name not in where or where[name].name != file:
            place = where[name].name if name in where else "no file"
            raise BadCheckpoint(f"{INDEX} puts tensor {name!r} in {file}; it is in {place}")


def _weight_map(folder: Path) -> dict[str, str]:
    """The index's files by tensor name."""
    names = _read_json(folder / INDEX).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        raise BadCheckpoint(f"{INDEX} must have a weight_map from tensors to files; got {str(names)[:80]}")
    return names


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise BadCheckpoint(f"{path.name} must be a JSON object; {error}") from error
    if not isinstance(value, dict):
        raise BadCheckpoint(f"{path.name} must be a JSON object; got {type(value).__name__}")
    return value


def _header(path: Path) -> tuple[int, dict[str, Any]]:
    """Where the data begins, and the entries by tensor name; every offset is checked against the file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise BadCheckpoint(f"{path.name} is cut short: its header wants {length} bytes, the file has {size}")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise BadCheckpoint(f"{path.name} has no readable safetensors header; {error}") from error
    if isinstance(header, dict):
        header.pop("__metadata__", None)
    if not isinstance(header, dict) or not all(map(_is_entry, header.values())):
        raise BadCheckpoint(f"{path.name} has no readable safetensors header; entries need dtype, shape, data_offsets")
    start = 8 + length
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        width = np.dtype(NUMBERS.get(entry["dtype"], np.uint8)).itemsize
        if entry["dtype"] in NUMBERS and end - begin != int(np.prod(entry["shape"], dtype=np.int64)) * width:
            raise BadCheckpoint(f"tensor {name!r} in {path.name} has {end - begin} bytes for shape {entry['shape']}")
        if begin < 0 or begin > end or start + end > size:
            raise BadCheckpoint(f"{path.name} is cut short: tensor {name!r} ends at byte {start + end} of {size}")
    return start, header


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        return False
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        return False
    return all(isinstance(number, int) for number in shape + offsets)
