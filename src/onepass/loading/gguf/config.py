"""The `ModelConfig` and the classes that the metadata of a GGUF file describes, read strictly.

Tensors are `reader`; bytes and blocks are `file`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from onepass.errors import BadCheckpoint, UnsupportedModel
from onepass.loading.gguf.file import GgufFile
from onepass.models.config import ModelConfig
from onepass.models.rope import Rope, yarn_attention_factor

ARCHITECTURES = ("llama", "qwen2", "qwen3")  # Mistral's files say "llama"
RANK_POOLING = 4  # llama.cpp's number of "the head is read at the last token"
ROPE_FACTORS = "rope_freqs.weight"

# Keys after "<architecture>." that are read, or say nothing about the scores.
READ = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "attention.value_length",
        "block_count",
        "classifier.output_labels",
        "context_length",
        "embedding_length",
        "expert_count",
        "feed_forward_length",
        "pooling_type",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.type",
        "vocab_size",
    }
)
HARMLESS = frozenset({"expert_used_count", "rope.scaling.finetuned"})

# (factor, low_freq_factor, high_freq_factor, original positions) of Llama 3.1 and of Llama 3.2.
PUBLISHED_LLAMA3 = ((8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192))


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """The decoder a GGUF file describes, or an `UnsupportedModel` that says what is supported."""
    architecture = architecture_of(file.metadata)
    keys = _Keys(file.metadata, architecture)
    keys.refuse_what_is_not_computed()
    heads = keys.whole("attention.head_count")
    head_dim = _head_dim(keys, heads)
    has = file.tensors.__contains__
    labels = len(labels_from_gguf(file))
    if (pooling := keys.found.get("pooling_type", 0)) not in ((RANK_POOLING,) if labels else (0, RANK_POOLING)):
        raise UnsupportedModel(f"{keys.prefix}pooling_type {pooling} is not supported; supported: 0 (none), 4 (rank)")
    return ModelConfig(
        architecture=architecture,
        vocab_size=_vocab_size(file, keys),
        hidden_size=keys.whole("embedding_length"),
        num_layers=keys.whole("block_count"),
        num_heads=heads,
        num_kv_heads=keys.whole("attention.head_count_kv", heads),
        head_dim=head_dim,
        mlp_size=keys.whole("feed_forward_length"),
        max_position=_max_position(keys),
        rms_eps=_as_written(keys.need("attention.layer_norm_rms_epsilon")),
        rope=_rope(file, keys, head_dim),
        tied=not has("output.weight") and not labels,
        qk_norm=architecture == "qwen3",
        qkv_bias=architecture == "qwen2" or has("blk.0.attn_q.bias"),
        out_bias=has("blk.0.attn_output.bias"),
        mlp_bias=has("blk.0.ffn_gate.bias"),
        num_labels=labels,
        head_bias=has("cls.output.bias"),
    )


def labels_from_gguf(file: GgufFile) -> tuple[str, ...]:
    """The classes of `cls.output`, by the names that the file gives them; () where there is no such head."""
    if "cls.output.weight" not in file.tensors:
        return ()
    count = file.tensors["cls.output.weight"].shape[0]
    names = file.metadata.get(f"{architecture_of(file.metadata)}.classifier.output_labels")
    if names is not None and len(names) != count:
        raise BadCheckpoint(f"cls.output.weight has {count} rows, but there are {len(names)} classifier.output_labels")
    return tuple(map(str, names)) if names else tuple(f"LABEL_{n}" for n in range(count))


class _Keys:
    """The metadata of one architecture, by what follows its name."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self.prefix = architecture + "."
        self.found = {k.removeprefix(self.prefix): v for k, v in metadata.items() if k.startswith(self.prefix)}

    def need(self, key: str) -> Any:
        if key not in self.found:
            raise BadCheckpoint(f"the metadata must have {self.prefix + key!r}; it has {', '.join(sorted(self.found))}")
        return self.found[key]

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1. Files may write one per layer; only one for all layers is supported."""
        value = self.need(key) if default is None else self.found.get(key, default)
        each = set(value) if isinstance(value, list) else {value}
        if len(each) != 1:
            raise UnsupportedModel(f"{self.prefix + key} must be one number for all layers; got {value!r}")
        number = each.pop()
        if not isinstance(number, int) or number < 1:
            raise BadCheckpoint(f"{self.prefix + key} must be a whole number of at least 1; got {number!r}")
        return number

    def refuse_what_is_not_computed(self) -> None:
        if self.found.get("expert_count"):
            experts = self.found["expert_count"]
            raise UnsupportedModel(f"mixture-of-experts models are not supported; this one has {experts} experts")
        unknown = sorted(k for k, v in self.found.items() if k not in READ | HARMLESS and v not in (None, False))
        if unknown:
            raise UnsupportedModel(
                f"metadata that onepass does not know and so will not ignore: {', '.join(unknown)}; "
                f"supported after {self.prefix!r}: {', '.join(sorted(READ))}"
            )


def _as_written(number: float) -> float:
    """The decimal that a float32 was made from: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(number)))


def architecture_of(metadata: Mapping[str, Any]) -> str:
    name = metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        raise UnsupportedModel(f"GGUF architecture {name!r} is not supported; supported: {', '.join(ARCHITECTURES)}")
    return str(name)


def _vocab_size(file: GgufFile, keys: _Keys) -> int:
    if "token_embd.weight" not in file.tensors:
        raise BadCheckpoint(f"{file.path.name} must have the tensor 'token_embd.weight'")
    size = file.tensors["token_embd.weight"].shape[0]
    if keys.found.get("vocab_size", size) != size:
        raise BadCheckpoint(f"{keys.prefix}vocab_size is {keys.found['vocab_size']}, but there are {size} embeddings")
    tokens = len(file.metadata.get("tokenizer.ggml.tokens", ()))
    if tokens > size:
        raise BadCheckpoint(f"the vocabulary has {tokens} tokens, but there are {size} embeddings")
    return size


def _head_dim(keys: _Keys, heads: int) -> int:
    hidden = keys.whole("embedding_length")
    if "attention.key_length" not in keys.found and hidden % heads:
        raise BadCheckpoint(f"embedding_length {hidden} is not a multiple of {heads} heads, and there is no key_length")
    size = keys.whole("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.whole(key, size) != size:
            raise UnsupportedModel(f"{keys.prefix + key} must equal the head size {size}; got {keys.found[key]}")
    return size


def _max_position(keys: _Keys) -> int:
    """A sliding window is exact as long as nothing is longer than it, so the window becomes the limit."""
    limit, window = keys.whole("context_length"), keys.found.get("attention.sliding_window")
    return min(limit, keys.whole("attention.sliding_window")) if window else limit


def _rope(file: GgufFile, keys: _Keys, head_dim: int) -> Rope:
    theta = _as_written(keys.found.get("rope.freq_base", 10000.0))
    factor = float(keys.found.get("rope.scaling.factor") or keys.found.get("rope.scale_linear") or 1.0)
    kind = keys.found.get("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModel(
            f"{keys.prefix}rope.scaling.type {kind!r} is not supported; supported: none, linear, yarn"
        )
    if kind == "yarn":
        original = keys.whole("rope.scaling.original_context_length", keys.whole("context_length"))
        return Rope(
            theta, "yarn", factor, original_max_position=original, attention_factor=yarn_attention_factor(factor)
        )
    linear = kind == "linear" and factor != 1.0
    llama3 = _llama3_rope(file, theta, head_dim) if ROPE_FACTORS in file.tensors else None
    if llama3 is not None and linear:
        raise UnsupportedModel(f"{ROPE_FACTORS} together with linear rope scaling by {factor} is not supported")
    return llama3 or (Rope(theta, "linear", factor) if linear else Rope(theta))


def _llama3_rope(file: GgufFile, theta: float, head_dim: int) -> Rope:
    """llama.cpp stores what Llama 3's scaling does to each frequency, not its parameters: recognise the published."""
    stored = file.read(ROPE_FACTORS).astype(np.float64)
    for factor, low, high, original in PUBLISHED_LLAMA3:
        rope = Rope(theta, "llama3", factor, low, high, original)
        expected = llama3_factors(rope, head_dim)
        if stored.shape == expected.shape and np.allclose(stored, expected, rtol=1e-4, atol=0):
            return rope
    published = "; ".join(f"factor {p[0]:g}, low {p[1]:g}, high {p[2]:g}, original {p[3]}" for p in PUBLISHED_LLAMA3)
    raise UnsupportedModel(
        f"{ROPE_FACTORS} ({stored.size} values from {stored.min():g} to {stored.max():g}) is no llama3 scaling known "
        f"for head size {head_dim} and rope base {theta:g}; supported: {published}"
    )


def llama3_factors(rope: Rope, head_dim: int) -> np.ndarray:
    """What each rotary frequency is divided by: 1 for short waves, `factor` for long ones, a blend between."""
    frequency = rope.theta ** -(np.arange(0, head_dim, 2) / head_dim)
    turns = rope.original_max_position * frequency / (2 * np.pi)
    blend = np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0, 1)
    return 1 / ((1 - blend) / rope.factor + blend)
