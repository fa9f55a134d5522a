"""A GGUF model in several files, `name-00001-of-00003.gguf` and so on, as llama.cpp's gguf-split writes them.

The first file has the metadata; each has some of the tensors. `open_gguf` opens a model in one file or in several.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from onepass.errors import BadCheckpoint, ConfigError, ModelNotFound
from onepass.loading.gguf.file import GgufFile
from onepass.loading.tensor_reader import Blocks

PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


@dataclass(frozen=True)
class SplitGgufFile(GgufFile):
    """The first file's metadata and all files' tensors; each tensor is read from the file that has it."""

    parts: tuple[GgufFile, ...] = ()

    @cached_property
    def _by_tensor(self) -> dict[str, GgufFile]:
        return {name: part for part in self.parts for name in part.tensors}

    def _part(self, name: str) -> GgufFile:
        if name not in self._by_tensor:
            raise BadCheckpoint(f"{self.path.name} and its parts have no tensor {name!r}")
        return self._by_tensor[name]

    def read(self, name: str, rows: slice = slice(None)) -> np.ndarray:
        return self._part(name).read(name, rows)

    def read_blocks(self, name: str) -> Blocks | None:
        return self._part(name).read_blocks(name)

    def stored_as(self, name: str) -> tuple[int, int]:
        return self._part(name).stored_as(name)

    def read_stored(self, name: str) -> np.ndarray:
        return self._part(name).read_stored(name)

    def forget(self, name: str) -> None:
        self._part(name).forget(name)

    def close(self) -> None:
        for part in self.parts:
            part.close()


def gguf_paths(path: Path) -> tuple[Path, ...]:
    """All files of the model that `path` is, or is the first part of."""
    match = PART.fullmatch(path.name)
    if match is None:
        return (path,)
    if int(match["number"]) != 1:
        first = f"{match['stem']}-00001-of-{match['count']}.gguf"
        raise ConfigError(f"{path.name} is part {int(match['number'])} of a model; give the first, {first}")
    count = int(match["count"])
    paths = tuple(path.with_name(f"{match['stem']}-{n:05}-of-{match['count']}.gguf") for n in range(1, count + 1))
    missing = [each.name for each in paths if not each.is_file()]
    if missing:
        raise ModelNotFound(f"{path.name} is the first of {count} files; not there: {', '.join(missing[:4])}")
    return paths


def open_gguf(path: str | Path) -> GgufFile:
    path = Path(path)
    paths = gguf_paths(path)
    if len(paths) == 1:
        file = GgufFile.open(path)
        if (count := file.metadata.get("split.count", 1)) > 1:
            raise BadCheckpoint(
                f"{path.name} is one of {count} files of a model, which must be named NAME-00001-of-{count:05}.gguf "
                "and so on"
            )
        return file
    parts = tuple(GgufFile.open(each) for each in paths)
    _check(parts)
    first = parts[0]
    tensors = {name: info for part in parts for name, info in part.tensors.items()}
    return SplitGgufFile(first.path, first.metadata, tensors, first._offsets, first._bytes, parts)


def _check(parts: tuple[GgufFile, ...]) -> None:
    """Each part says which it is and of how many, and no tensor comes twice or is missing."""
    seen: dict[str, str] = {}
    for number, part in enumerate(parts):
        said = (part.metadata.get("split.no"), part.metadata.get("split.count"))
        if said != (number, len(parts)):
            raise BadCheckpoint(
                f"{part.path.name} must have split.no {number} and split.count {len(parts)}; "
                f"it has {said[0]} and {said[1]}"
            )
        for name in part.tensors:
            if name in seen:
                raise BadCheckpoint(f"tensor {name!r} is in both {seen[name]} and {part.path.name}")
            seen[name] = part.path.name
    wanted = parts[0].metadata.get("split.tensors.count")
    if wanted is not None and wanted != len(seen):
        raise BadCheckpoint(f"{parts[0].path.name} announces {wanted} tensors; its {len(parts)} files have {len(seen)}")
