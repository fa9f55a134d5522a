"""A GGUF model in several files is the same model; a part that is missing, misnamed or of another model is an error."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loading.gguf.files import byte_level_vocabulary, model_metadata, model_tensors, write_gguf
from onepass.errors import BadCheckpoint, ConfigError, ModelNotFound
from onepass.loading.configuration import open_config
from onepass.loading.gguf.split import open_gguf
from onepass.loading.model import open_model


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    vocabulary = byte_level_vocabulary("gpt-2")
    tensors = model_tensors("llama", len(vocabulary["tokenizer.ggml.tokens"]))
    return write_gguf(tmp_path / "small.gguf", model_metadata("llama") | vocabulary, tensors)


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return write_parts(tmp_path)


def write_parts(folder: Path, count: int = 3, repeat: str | None = None, **changes: Any) -> Path:
    """As llama.cpp's gguf-split writes them: the first has the metadata."""
    vocabulary = byte_level_vocabulary("gpt-2")
    tensors = model_tensors("llama", len(vocabulary["tokenizer.ggml.tokens"]))
    names = list(tensors)
    for number in range(count):
        split = {"split.no": number, "split.count": count, "split.tensors.count": len(tensors), **changes}
        metadata = model_metadata("llama") | vocabulary if number == 0 else {"general.architecture": "llama"}
        kept = {name: tensors[name] for name in names[number::count]}
        if repeat is not None:
            kept[repeat] = tensors[repeat]
        write_gguf(folder / f"small-{number + 1:05}-of-{count:05}.gguf", metadata | split, kept)
    return folder / f"small-00001-of-{count:05}.gguf"


def test_the_parts_are_the_whole(whole: Path, first: Path) -> None:
    one, several = open_model(str(whole)), open_model(str(first))
    assert (several.name, several.config) == (one.name, one.config)
    assert one.reader is not None
    assert several.reader is not None
    assert several.reader.tensors() == one.reader.tensors()
    for name in one.reader.tensors():
        np.testing.assert_array_equal(several.reader.read(name), one.reader.read(name))
        np.testing.assert_array_equal(several.reader.read(name, (slice(0, 8),)), one.reader.read(name, (slice(0, 8),)))
    assert several.file_bytes == sum(path.stat().st_size for path in first.parent.glob("small-*"))
    assert open_config(str(first)) == ("small", one.config)
    several.reader.close()


def test_every_part_is_read_as_it_is_stored(whole: Path, first: Path) -> None:
    """As weights that stay in the file's blocks are read."""
    one, several = open_gguf(whole), open_gguf(first)
    for name in one.tensors:
        assert several.stored_as(name) == one.stored_as(name)
        np.testing.assert_array_equal(several.read_stored(name), one.read_stored(name))
        several.forget(name)
    with pytest.raises(BadCheckpoint, match="and its parts have no tensor 'other'"):
        several.read_stored("other")


def test_another_part_names_the_first(first: Path) -> None:
    with pytest.raises(ConfigError, match=r"is part 2 of a model; give the first, small-00001-of-00003\.gguf"):
        open_model(str(first.with_name("small-00002-of-00003.gguf")))


def test_a_missing_part_is_named(first: Path) -> None:
    first.with_name("small-00003-of-00003.gguf").unlink()
    with pytest.raises(ModelNotFound, match=r"is the first of 3 files; not there: small-00003-of-00003\.gguf"):
        open_model(str(first))


def test_a_part_under_another_name_is_refused(first: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"one\.gguf is one of 3 files of a model, which must be named"):
        open_model(str(first.rename(first.with_name("one.gguf"))))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"split.no": 0}, r"small-00002-of-00003\.gguf must have split.no 1 and split.count 3; it has 0 and 3"),
        ({"split.count": 4}, "it has 0 and 4"),
        ({"split.tensors.count": 5}, "announces 5 tensors; its 3 files have"),
        ({"repeat": "output_norm.weight"}, "'output_norm.weight' is in both"),
    ],
    ids=str,
)
def test_parts_that_contradict_each_other_are_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    path = write_parts(tmp_path, **changes)
    with pytest.raises(BadCheckpoint, match=says):
        open_model(str(path))
