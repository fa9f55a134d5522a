"""Every form a model's name may take leads to the right place, and every wrong one to words that help."""

import hashlib
import re
from pathlib import Path

import pytest

from onepass.errors import BadCheckpoint, ConfigError, DownloadFailed, ModelNotFound, UnsupportedModel
from onepass.loading.bundled import BUNDLED, cached_path
from onepass.loading.source import Source, SourceOptions, resolve
from onepass.models.known import KNOWN

OPTIONS = SourceOptions()
NO_SERVER = "http://127.0.0.1:9"  # whoever asks the hub fails at once, and the error names what was asked for


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a checkpoint, a GGUF file and a stray file in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acme" / "ranker").mkdir(parents=True)
    (tmp_path / "acme" / "ranker" / "config.json").write_text("{}")
    (tmp_path / "small.Q4_0.gguf").write_bytes(b"GGUF")
    (tmp_path / "weights.bin").write_bytes(b"pickle")
    return tmp_path


def test_a_random_shape_needs_only_its_name() -> None:
    source = resolve("random:qwen3-0.6b", OPTIONS)
    assert source == Source("random", "random:qwen3-0.6b", config=KNOWN["qwen3-0.6b"], seed=0)


def test_a_random_shape_may_have_fewer_layers_and_another_seed() -> None:
    source = resolve("random:qwen3-0.6b?layers=2&seed=7", OPTIONS)
    assert source.config is not None
    assert (source.config.num_layers, source.seed, source.config.hidden_size) == (2, 7, 1024)
    assert KNOWN["qwen3-0.6b"].num_layers == 28


@pytest.mark.parametrize("query", ["heads=2", "layers", "layers=two", "layers=-1", "seed=1;layers=2", "layers=²"])
def test_an_unknown_option_of_a_random_shape_is_refused(query: str) -> None:
    with pytest.raises(ConfigError, match=r"takes \?layers=N and \?seed=N"):
        resolve(f"random:qwen3-0.6b?{query}", OPTIONS)


@pytest.mark.parametrize("layers", [0, 29])
def test_a_random_shape_cannot_have_more_layers_than_it_has(layers: int) -> None:
    with pytest.raises(ConfigError, match=f"qwen3-0.6b has 28 layers; got layers={layers}"):
        resolve(f"random:qwen3-0.6b?layers={layers}", OPTIONS)


def test_a_mistyped_shape_suggests_the_right_one() -> None:
    with pytest.raises(ModelNotFound, match=r"did you mean qwen3-0\.6b"):
        resolve("random:qwen3-06b", OPTIONS)


def test_a_folder_and_a_gguf_file_are_found_by_path(folder: Path) -> None:
    assert resolve("acme/ranker", OPTIONS) == Source("folder", "ranker", path=Path("acme/ranker"))
    assert resolve(str(folder / "small.Q4_0.gguf"), OPTIONS).name == "small.Q4_0"
    assert resolve("small.Q4_0.gguf", OPTIONS) == Source("gguf", "small.Q4_0", path=Path("small.Q4_0.gguf"))


def test_a_path_may_start_at_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert resolve("~/acme/ranker", OPTIONS).path == folder / "acme" / "ranker"


def test_another_file_is_refused(folder: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"weights\.bin is a file.*\*\.gguf"):
        resolve("weights.bin", OPTIONS)


def test_a_folder_without_a_model_says_what_it_lacks_and_what_it_has(folder: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"must hold config\.json.*give .*small\.Q4_0\.gguf"):
        resolve(str(folder), OPTIONS)


def test_a_bundled_name_wins_over_a_folder_and_a_dot_chooses_the_folder(folder: Path) -> None:
    (folder / "smollm2-135m").mkdir()
    (folder / "smollm2-135m" / "config.json").write_text("{}")
    with pytest.raises(DownloadFailed, match="smollm2-135m is not in"):
        resolve("smollm2-135m", SourceOptions(offline=True, cache_dir=folder / "cache"))
    assert resolve("./smollm2-135m", OPTIONS).kind == "folder"


def test_a_bundled_model_is_its_cached_file(tmp_path: Path) -> None:
    source = resolve("smollm2-135m", OPTIONS)
    assert (source.kind, source.name) == ("gguf", "smollm2-135m")
    assert source.path is not None
    bundled = BUNDLED["smollm2-135m"]
    assert hashlib.sha256(source.path.read_bytes()).hexdigest() == bundled.gguf_sha256
    assert source.path == cached_path(bundled, source.path.parents[1])


@pytest.mark.parametrize(
    ("name", "revision", "asked"),
    [
        ("acme/ranker", None, "acme/ranker:"),
        ("acme/ranker@v1", None, "acme/ranker@v1:"),
        ("acme/ranker", "v2", "acme/ranker@v2:"),
        ("acme/ranker@v1", "v1", "acme/ranker@v1:"),
        ("acme/ranker@refs/pr/3", None, "acme/ranker@refs/pr/3:"),
    ],
)
def test_a_hub_name_asks_the_hub(tmp_path: Path, name: str, revision: str | None, asked: str) -> None:
    options = SourceOptions(revision=revision, cache_dir=tmp_path, endpoint=NO_SERVER)
    with pytest.raises(DownloadFailed, match=re.escape(f"the hub did not give {asked}")):
        resolve(name, options)


def test_two_different_revisions_contradict() -> None:
    with pytest.raises(ConfigError, match="two revisions for acme/ranker: 'v1' in its name and 'v2'"):
        resolve("acme/ranker@v1", SourceOptions(revision="v2", endpoint=NO_SERVER))


@pytest.mark.parametrize("name", ["smollm2-135m", "random:qwen3-0.6b", "small.Q4_0.gguf", "acme/ranker"])
def test_a_revision_is_only_for_the_hub(folder: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="a revision is for names on the hub"):
        resolve(name, SourceOptions(revision="v1"))


@pytest.mark.parametrize("name", ["./nothing", "/nothing/at/all", "~/nothing", "nothing.gguf", "models/nothing.GGUF"])
def test_a_path_that_is_not_there_is_called_a_path(folder: Path, name: str) -> None:
    with pytest.raises(ModelNotFound, match=f"no file or folder '{name}'"):
        resolve(name, OPTIONS)


@pytest.mark.parametrize(("name", "suggested"), [("smolm2-135m", "smollm2-135m"), ("Qwen3-0.6B", "random:qwen3-0.6b")])
def test_a_mistyped_name_lists_what_was_tried_and_suggests(folder: Path, name: str, suggested: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve(name, OPTIONS)
    message = str(caught.value)
    for tried in ("bundled model (smollm2-135m)", "folder or .gguf file", "org/name", "random:NAME"):
        assert tried in message
    assert f"did you mean {suggested}" in message


@pytest.mark.parametrize("name", ["", "a/b/c", "no such thing", "acme/ranker@"])
def test_what_is_no_name_at_all_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound, match="no model is called"):
        resolve(name, OPTIONS)
