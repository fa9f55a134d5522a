"""A model's configuration and nothing else: no tokenizer, no tensors, and from the hub at most `config.json`.

With an adapter it is that of the model with the adapter merged in; of the adapter's file the shapes are read. For
questions that shapes alone can answer. Opening a model to run it is `model`.
"""

from dataclasses import replace
from pathlib import Path

from onepass.loading.adapters.adapter import open_adapter
from onepass.loading.adapters.merge import merged_config
from onepass.loading.bundled import BUNDLED
from onepass.loading.model import read_json
from onepass.loading.quantized.scheme import quantization_scheme
from onepass.loading.source import SourceOptions, adapter_folder, adapter_name, resolve
from onepass.models.config import ModelConfig
from onepass.models.hf_config import from_hf
from onepass.models.known import KNOWN
from onepass.models.published import PUBLISHED


def published_config(name: str, options: SourceOptions | None = None) -> ModelConfig | None:
    """That of a public model, where no revision is asked for and no folder has its name; None of all others."""
    if (options is not None and options.revision is not None) or Path(name).exists():
        return None
    return PUBLISHED.get(name)


def open_config(name: str, options: SourceOptions | None = None) -> tuple[str, ModelConfig]:
    """The model's name and configuration. Nothing is fetched for models whose shape is known."""
    called, config = _open(name, options)
    if options is None or options.adapter is None:
        return called, config
    return _with_adapter(called, config, options.adapter, options)


def _with_adapter(model: str, config: ModelConfig, name: str, options: SourceOptions) -> tuple[str, ModelConfig]:
    from onepass.loading.load_weights import tensor_shapes

    folder = adapter_folder(name, options)
    adapter = open_adapter(adapter_name(name, folder), folder)
    try:
        return f"{model}+{adapter.name}", merged_config(config, tensor_shapes(config), adapter, model)
    finally:
        adapter.file.close()


def _open(name: str, options: SourceOptions | None) -> tuple[str, ModelConfig]:
    if name in BUNDLED and name in KNOWN:
        return name, KNOWN[name]
    if (published := published_config(name, options)) is not None:
        return name, published
    source = resolve(name, replace(options or SourceOptions(), weights=False))
    if source.kind == "random":
        assert source.config is not None
        return source.name, source.config
    assert source.path is not None
    if source.kind == "folder":
        raw = read_json(source.path / "config.json")
        quantization_scheme(raw)  # what could not be loaded is refused
        return source.name, from_hf(raw)
    from onepass.loading.gguf.config import config_from_gguf
    from onepass.loading.gguf.split import open_gguf

    return source.name, config_from_gguf(open_gguf(source.path))
