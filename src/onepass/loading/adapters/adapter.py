"""`Adapter`: a PEFT folder opened, its tensors by what they do to the model's.

    X.lora_A.weight [r, in], X.lora_B.weight [out, r]           X.weight += scale · B A
    X.lora_embedding_A [r, vocab], X.lora_embedding_B [d, r]     X.weight += scale · (B A)ᵀ
    X.lora_B.bias [out]                                          X.bias += scale · it
    X.weight, X.bias (modules_to_save, biases, base layers)      take the place of the model's

Whether they fit a model, and merging, is `merge`.
"""

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onepass.errors import BadCheckpoint, UnsupportedModel
from onepass.loading.adapters.lora_config import LoraConfig, lora_config
from onepass.loading.safetensors import SafetensorsReader
from onepass.loading.tensor_reader import TensorInfo

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
LORA = re.compile(
    r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(?:\.default)?(?:\.(?P<kind>weight|bias))?"
)
WRAPPERS = re.compile(r"\.(?:modules_to_save(?:\.default)?|base_layer)(?=\.(?:weight|bias)$)")


@dataclass(frozen=True)
class AdapterInfo:
    """What `info` says of an adapter."""

    name: str
    rank: int
    alpha: float
    rslora: bool
    base_model: str | None
    merged: tuple[str, ...]  # kinds of modules with LoRA, such as q_proj
    replaced: tuple[str, ...]  # tensors that the adapter brings whole


@dataclass
class LoraPair:
    """The names of one module's tensors in the adapter's file."""

    a: str | None = None
    b: str | None = None
    bias: str | None = None
    embedding: bool = False


@dataclass(frozen=True)
class Adapter:
    name: str
    config: LoraConfig
    file: SafetensorsReader
    pairs: dict[str, LoraPair] = field(default_factory=dict)  # by module
    replaced: dict[str, str] = field(default_factory=dict)  # the model's tensor → the adapter's

    @property
    def info(self) -> AdapterInfo:
        c = self.config
        kinds = tuple(sorted({module.rpartition(".")[2] for module in self.pairs}))
        return AdapterInfo(self.name, c.rank, c.alpha, c.rslora, c.base_model, kinds, tuple(sorted(self.replaced)))

    def shape_of(self, stored: str) -> TensorInfo:
        return self.file.tensors()[stored]


def open_adapter(name: str, folder: Path) -> Adapter:
    config = lora_config(_read_config(folder / CONFIG))
    file = SafetensorsReader(folder, WEIGHTS)
    pairs: dict[str, LoraPair] = defaultdict(LoraPair)
    replaced: dict[str, str] = {}
    for stored in file.tensors():
        if "lora_magnitude_vector" in stored:
            raise UnsupportedModel(f"DoRA adapters are not supported; {name} has the tensor {stored}")
        inner = stored.removeprefix(PREFIX)
        lora = LORA.fullmatch(inner)
        if lora is not None:
            _add(pairs[lora["module"]], lora, stored)
        elif ".original_module." in inner:
            continue  # a copy of the base's
        elif inner.endswith((".weight", ".bias")):
            replaced[WRAPPERS.sub("", inner)] = stored
        else:
            raise UnsupportedModel(f"the adapter {name} has a tensor that is no part of LoRA: {stored}")
    halves = [module for module, pair in pairs.items() if pair.a is None or pair.b is None]
    if halves:
        raise BadCheckpoint(f"the adapter {name} must have lora_A and lora_B of {halves[0]}; one of them is missing")
    if not pairs and not replaced:
        raise BadCheckpoint(f"the adapter {name} has no tensors")
    return Adapter(name, config, file, dict(pairs), replaced)


def _add(pair: LoraPair, found: re.Match[str], stored: str) -> None:
    pair.embedding = found["embedding"] is not None
    if found["kind"] == "bias":
        pair.bias = stored
    elif found["side"] == "A":
        pair.a = stored
    else:
        pair.b = stored


def _read_config(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadCheckpoint(f"{CONFIG} must be a JSON object; {error}") from error
    if not isinstance(value, dict):
        raise BadCheckpoint(f"{CONFIG} must be a JSON object; got {type(value).__name__}")
    return value
