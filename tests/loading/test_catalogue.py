"""The list of models says truly what is here, without fetching anything."""

import json
from pathlib import Path

from onepass.loading.bundled import BUNDLED, cached_path
from onepass.loading.catalogue import CatalogueEntry, catalogue
from onepass.models.known import KNOWN

LLAMA = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def entry(name: str, cache: Path) -> CatalogueEntry:
    return next(entry for entry in catalogue(cache) if entry.name == name)


def put_in_hub_cache(cache: Path, name: str, files: dict[str, str]) -> None:
    """The layout of huggingface_hub's cache: models--org--name/{refs,snapshots/COMMIT}."""
    folder = cache / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a" * 40)
    for file, content in files.items():
        (snapshot / file).write_text(content)


def test_an_empty_cache_lists_bundled_and_random_models_as_not_cached(tmp_path: Path) -> None:
    entries = catalogue(tmp_path / "nothing")
    assert [e.name for e in entries] == [*BUNDLED, *(f"random:{name}" for name in KNOWN)]
    assert not any(e.cached for e in entries)
    smollm2 = entries[0]
    assert (smollm2.kind, smollm2.licence, smollm2.size_bytes) == ("bundled", "Apache-2.0", None)
    assert smollm2.parameters == 134_515_008
    assert not (tmp_path / "nothing").exists()


def test_a_bundled_model_counts_as_cached_only_when_it_is_whole(tmp_path: Path) -> None:
    bundled = BUNDLED["smollm2-135m"]
    path = cached_path(bundled, tmp_path)
    path.parent.mkdir()
    path.write_bytes(b"half")
    assert not entry("smollm2-135m", tmp_path).cached
    with path.open("wb") as file:
        file.truncate(bundled.gguf_bytes)
    assert (entry("smollm2-135m", tmp_path).cached, entry("smollm2-135m", tmp_path).size_bytes) == (True, 98_362_432)


def test_models_of_the_hub_cache_are_listed_with_their_size_and_parameters(tmp_path: Path) -> None:
    put_in_hub_cache(tmp_path, "acme/ranker", {"config.json": json.dumps(LLAMA), "model.safetensors": "x" * 1000})
    ranker = entry("acme/ranker", tmp_path)
    assert (ranker.kind, ranker.cached, ranker.use) == ("hub", True, "onepass score acme/ranker")
    assert ranker.size_bytes == 1000 + len(json.dumps(LLAMA))
    # embedding + per layer (q, k, v, o: 4 x 8x8; MLP: 3 x 8x16; 2 norms) + the last norm
    assert ranker.parameters == 100 * 8 + 2 * (4 * 64 + 3 * 128 + 16) + 8


def test_models_of_the_hub_cache_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    put_in_hub_cache(tmp_path, "acme/bert", {"config.json": '{"model_type": "bert"}', "model.safetensors": ""})
    put_in_hub_cache(tmp_path, "acme/pickle", {"config.json": json.dumps(LLAMA), "pytorch_model.bin": ""})
    put_in_hub_cache(tmp_path, "acme/torn", {"config.json": "{", "model.safetensors": ""})
    notes = {e.name: e.note for e in catalogue(tmp_path) if e.kind == "hub"}
    assert notes == {
        "acme/bert": "model_type 'bert' is not supported",
        "acme/pickle": "no safetensors in the cache",
        "acme/torn": "no readable config.json",
    }
    assert entry("acme/bert", tmp_path).use is None
