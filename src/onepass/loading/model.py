"""A model opened but not loaded: configuration, tokenizer, templates, and a way to its tensors.

Opening imports no JAX, so that what is wrong with a request can be said before a second is spent on it.
Resolving names is `source`; reading tensors is `safetensors` and `reader`; the engine runs what `load` returns.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.errors import BadCheckpoint, ConfigError, ModelNotFound
from onepass.loading.adapters.adapter import AdapterInfo, open_adapter
from onepass.loading.adapters.merge import merged
from onepass.loading.chat.template import ChatTemplates, chat_templates_from_folder, chat_templates_from_gguf
from onepass.loading.quantized.reader import DequantizingReader
from onepass.loading.quantized.scheme import quantization_scheme
from onepass.loading.rerankers.method import ranker_of_model
from onepass.loading.rerankers.readouts import ClassHead
from onepass.loading.rerankers.registry import ranker_for
from onepass.loading.rerankers.templates import Ranker, RankMethod
from onepass.loading.safetensors import SafetensorsReader
from onepass.loading.source import Source, SourceOptions, adapter_folder, adapter_name, resolve
from onepass.loading.tensor_reader import Progress, TensorReader, silent
from onepass.loading.tokenizer import TextTokenizer
from onepass.models.config import ModelConfig
from onepass.models.hf_config import classifier_labels, from_hf

if TYPE_CHECKING:
    import jax.numpy as jnp
    from jax.sharding import Mesh

    from onepass.models.int8 import Int8Scales
    from onepass.models.weights import Weights


@dataclass(frozen=True)
class Model:
    """Everything but the weights. `tokenizer` is None for random shapes: they take token ids only."""

    name: str
    source: Source
    config: ModelConfig
    tokenizer: TextTokenizer | None
    ranker: Ranker
    chat: ChatTemplates = field(default_factory=ChatTemplates)
    class_head: ClassHead | None = None
    licence: str | None = None
    file_bytes: int | None = None
    reader: TensorReader | None = None
    quantization: str | None = None  # how the file stores its matrices, which are dequantised when they are read
    adapter: AdapterInfo | None = None  # merged into the weights when they are read

    @property
    def stored_quantization(self) -> str | None:
        """How the file stores its matrices, for people; None: unquantised."""
        return f"GGUF, {', '.join(self.quantised_tensors)}" if self.quantised_tensors else self.quantization

    @property
    def quantised_tensors(self) -> tuple[str, ...]:
        """The block types of a GGUF file's matrices that are quantised, by GGML's names."""
        if self.source.kind != "gguf" or self.reader is None or self.adapter is not None:
            return ()
        return tuple(sorted({info.dtype for info in self.reader.tensors().values() if info.dtype.startswith("Q")}))

    def reopened(self) -> "Model":
        """The same with its tensors to be read once more; of a GGUF file."""
        if self.adapter is not None:
            raise ConfigError("weights with an adapter cannot stay in a GGUF file's blocks")
        if self.source.kind != "gguf" or self.source.path is None:
            raise ConfigError(f"quantize='gguf' needs a GGUF file; {self.name} is none")
        return _open_gguf(self.source, self.source.path)

    @property
    def chat_template(self) -> str | None:
        return self.chat.default

    @property
    def rank_method(self) -> RankMethod:
        return self.ranker.method

    @property
    def rank_template(self) -> str:
        template = self.ranker.template(self.ranker.method)
        return template.context + template.item + template.continuation

    def load(
        self,
        dtype: "jnp.dtype",
        progress: Progress = silent,
        mesh: "Mesh | None" = None,
        int8: "Int8Scales | None" = None,
        keep_blocks: bool = False,
    ) -> "Weights":
        """On the default device, or split over `mesh` as `models.layout` says. `int8`: the layers' matrices in 8 bits
        with such scales, on a CPU. `keep_blocks`: matrices in the blocks of a GGUF file, on a CPU."""
        from onepass.loading.load_weights import load_weights
        from onepass.models.int8 import in_int8
        from onepass.models.random import random_weights

        if self.reader is None:
            weights = random_weights(self.config, dtype, self.source.seed, mesh)
            return weights if int8 is None else in_int8(weights, int8)
        weights = load_weights(self.config, self.reader, dtype, progress, mesh, int8, keep_blocks)
        self.reader.close()
        return weights


def open_model(name: str, options: SourceOptions | None = None) -> Model:
    options = options or SourceOptions()
    model = _open(resolve(name, options))
    return model if options.adapter is None else _with_adapter(model, options.adapter, options)


def _with_adapter(model: Model, name: str, options: SourceOptions) -> Model:
    """The model with a LoRA adapter. A head that the adapter brings is read as the model's own would be."""
    if model.reader is None:
        raise ConfigError(f"an adapter needs a model with weights of its own; the model is {model.name}")
    folder = adapter_folder(name, options)
    adapter = open_adapter(adapter_name(name, folder), folder)
    config, reader = merged(model.config, model.reader, adapter, model.name)
    changed = replace(model, name=f"{model.name}+{adapter.name}", config=config, reader=reader, adapter=adapter.info)
    if config.num_labels == model.config.num_labels:
        return changed
    assert model.tokenizer is not None
    head = ClassHead.of(tuple(f"LABEL_{n}" for n in range(config.num_labels)), None)
    base = model.source.path if model.source.kind == "folder" else None
    return replace(
        changed,
        class_head=head,
        ranker=ranker_of_model(model.source.name, base, model.chat, model.tokenizer, head),
    )


def _open(source: Source) -> Model:
    if source.kind == "random":
        assert source.config is not None
        return Model(source.name, source, source.config, None, ranker_for(source.name))
    assert source.path is not None
    return _open_gguf(source, source.path) if source.kind == "gguf" else _open_folder(source, source.path)


def _open_gguf(source: Source, path: Path) -> Model:
    from onepass.loading.gguf.config import config_from_gguf, labels_from_gguf
    from onepass.loading.gguf.reader import GgufReader
    from onepass.loading.gguf.split import gguf_paths, open_gguf
    from onepass.loading.gguf.tokenizer import tokenizer_from_gguf

    file = open_gguf(path)
    text, chat = TextTokenizer(tokenizer_from_gguf(file.metadata)), chat_templates_from_gguf(file.metadata)
    labels = labels_from_gguf(file)
    head = ClassHead(labels, "identity" if len(labels) == 1 else "softmax") if labels else None
    return Model(
        name=source.name,
        source=source,
        config=config_from_gguf(file),
        tokenizer=text,
        ranker=ranker_of_model(source.name, None, chat, text, head),
        chat=chat,
        class_head=head,
        licence=file.metadata.get("general.license"),
        file_bytes=sum(part.stat().st_size for part in gguf_paths(path)),
        reader=GgufReader(file),
    )


def _open_folder(source: Source, folder: Path) -> Model:
    raw = read_json(folder / "config.json")
    config, labels = from_hf(raw), classifier_labels(raw)
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.exists():
        raise BadCheckpoint(f"{folder.name} must hold tokenizer.json; it holds {_listing(folder)}")
    file, scheme = SafetensorsReader(folder), quantization_scheme(raw)
    reader: TensorReader = file if scheme is None else DequantizingReader(file, scheme)
    if labels:
        config = replace(config, head_bias="score.bias" in reader.tensors())
    text, chat = TextTokenizer.from_file(tokenizer), chat_templates_from_folder(folder)
    head = ClassHead.of(labels, raw.get("problem_type")) if labels else None
    return Model(
        name=source.name,
        source=source,
        config=config,
        tokenizer=text,
        ranker=ranker_of_model(source.name, folder, chat, text, head),
        chat=chat,
        class_head=head,
        file_bytes=sum(path.stat().st_size for path in folder.glob("*.safetensors")),
        reader=reader,
        quantization=None if scheme is None else scheme.description,
    )


def read_json(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        raise ModelNotFound(f"{path.parent.name} must hold {path.name}; it holds {_listing(path.parent)}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadCheckpoint(f"{path.name} must be a JSON object; {error}") from error
    if not isinstance(value, dict):
        raise BadCheckpoint(f"{path.name} must be a JSON object; got {type(value).__name__}")
    return value


def _listing(folder: Path) -> str:
    return ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"
