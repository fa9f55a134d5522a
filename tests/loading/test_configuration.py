"""A configuration is read without weights, and is the one that the model itself would have."""

from collections.abc import Callable
from pathlib import Path

import pytest

from onepass.errors import ModelNotFound
from onepass.loading.configuration import open_config
from onepass.loading.model import open_model


def test_it_is_the_configuration_of_the_opened_model(checkpoint: Callable[[str], Path]) -> None:
    for name in ("random:qwen3-0.6b?layers=3", str(checkpoint("qwen2"))):
        model = open_model(name)
        assert open_config(name) == (model.name, model.config)


def test_a_bundled_model_is_known_without_being_fetched(smollm2_gguf: Path, tmp_path: Path) -> None:
    from onepass.loading.source import SourceOptions

    nowhere = SourceOptions(offline=True, cache_dir=tmp_path)
    name, config = open_config("smollm2-135m", nowhere)
    assert name == "smollm2-135m"
    assert config == open_config(str(smollm2_gguf))[1], "the known shape is the file's"


def test_a_folder_needs_only_its_config(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint("qwen3") / "config.json").read_bytes())
    assert open_config(str(tmp_path))[1] == open_model(str(checkpoint("qwen3"))).config
    with pytest.raises(ModelNotFound, match="no model is called"):
        open_config("nonsense")
