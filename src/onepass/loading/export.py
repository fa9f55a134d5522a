"""A loaded model as a Hugging Face folder: the inverse of `loading.load_weights`. PyTorch reads the same numbers.

Tensors are written one at a time in the dtype they have on the device, whole also where devices share them; tokenizers
are not written.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from onepass.models.config import ModelConfig
from onepass.models.hf_config import ARCHITECTURES, CLASSIFIERS
from onepass.models.layout import Layout, mesh_of
from onepass.models.rope import Rope
from onepass.models.weights import Part, Weights

SAFETENSORS_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


def export(config: ModelConfig, weights: Weights, folder: Path) -> None:
    """Write config.json and model.safetensors into `folder`."""
    dtype, layout = str(weights.embed.dtype), Layout(config, mesh_of(weights))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(to_hf(config, dtype), indent=2) + "\n", encoding="utf-8")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, part, *_ in _parts(layout, weights):
        start, end = end, end + int(np.prod(part.shape)) * weights.embed.dtype.itemsize
        header[name] = {"dtype": SAFETENSORS_DTYPES[dtype], "shape": part.shape, "data_offsets": [start, end]}
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for _, part, wide, array, layer in _parts(layout, weights):
            file.write(_tensor(layout, part, wide, array if layer is None else array[layer]).tobytes())


def to_hf(config: ModelConfig, dtype: str) -> dict[str, Any]:
    """The `config.json` that `models.hf_config.from_hf` and transformers read as this configuration."""
    raw: dict[str, Any] = {
        "architectures": [(CLASSIFIERS if config.num_labels else ARCHITECTURES)[config.architecture]],
        "model_type": config.architecture,
        "torch_dtype": dtype,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.mlp_size,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_eps,
        "tie_word_embeddings": config.tied,
        "hidden_act": "silu",
        "rope_theta": config.rope.theta,
        "rope_scaling": _rope_scaling(config.rope),
        "sliding_window": None,
    }
    if config.num_labels:
        raw["id2label"] = {str(n): f"LABEL_{n}" for n in range(config.num_labels)}
    if config.architecture in ("qwen2", "qwen3"):
        raw["use_sliding_window"] = False
    if config.architecture in ("llama", "qwen3"):
        raw["attention_bias"] = config.out_bias
    if config.architecture == "llama":
        raw["mlp_bias"] = config.mlp_bias
    return raw


def _rope_scaling(rope: Rope) -> dict[str, Any] | None:
    if rope.kind == "default":
        return None
    scaling: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "llama3":
        scaling["low_freq_factor"] = rope.low_freq_factor
        scaling["high_freq_factor"] = rope.high_freq_factor
        scaling["original_max_position_embeddings"] = rope.original_max_position
    if rope.kind == "yarn":
        scaling["original_max_position_embeddings"] = rope.original_max_position
        scaling["attention_factor"] = rope.attention_factor
        scaling["beta_fast"], scaling["beta_slow"] = rope.beta_fast, rope.beta_slow
        scaling["truncate"] = rope.truncate
    return scaling


def _parts(layout: Layout, weights: Weights) -> Iterator[tuple[str, Part, Part, jax.Array, int | None]]:
    """Every tensor's name, part, the same as the devices hold it, leaf and layer; leaves without layers have None."""
    for (leaf, wide), array in zip(layout.leaves(), jax.tree.leaves(weights), strict=True):
        for layer in range(leaf.shape[0]) if leaf.stacked else (None,):
            for part, held in zip(leaf.parts, wide.parts, strict=True):
                yield part.name.format(layer=layer), part, held, array, layer


def _tensor(layout: Layout, part: Part, wide: Part, array: jax.Array) -> np.ndarray:
    whole = np.asarray(array)
    held = (whole[wide.index] if wide.index else whole).reshape(wide.shape)
    if part.shape == wide.shape:
        return np.ascontiguousarray(held)
    out = np.empty(part.shape, held.dtype)
    unit, there, before = (
        part.shape[part.axis] // layout.count(part),
        layout.share_count(part),
        (slice(None),) * part.axis,
    )
    for number in range(layout.devices):
        for piece in layout.pieces(part, number):
            source = slice(unit * piece.source.start, unit * piece.source.stop)
            first, last = number * there + piece.target.start, number * there + piece.target.stop
            out[(*before, source)] = held[(*before, slice(unit * first, unit * last))]
    return out
