"""A `ModelConfig` and the classes of a model, read strictly from a HF `config.json`.

A key that changes what the network computes and that we do not implement is an error, never ignored. What
`quantization_config` says about the stored tensors is read by `loading.quantized`.
"""

from collections.abc import Mapping
from typing import Any

from onepass.errors import UnsupportedModel
from onepass.models.config import ModelConfig
from onepass.models.rope import Rope, rope_from_hf

ARCHITECTURES = {
    "qwen3": "Qwen3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
}
CLASSIFIERS = {kind: name.replace("CausalLM", "SequenceClassification") for kind, name in ARCHITECTURES.items()}

# Keys that say nothing about the scores of a dense decoder at inference.
HARMLESS = frozenset(
    [
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "attn_implementation",
        "auto_map",
        "bos_token_id",
        "chunk_size_feed_forward",
        "classifier_dropout",
        "dtype",
        "eos_token_id",
        "finetuning_task",
        "id2label",
        "initializer_range",
        "is_decoder",
        "is_llama_config",
        "label2id",
        "max_window_layers",
        "model_type",
        "name_or_path",
        "num_labels",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "residual_dropout",
        "return_dict",
        "rope_interleaved",
        "sbert_ce_default_activation_function",
        "sentence_transformers",
        "sep_token_id",
        "task_specific_params",
        "tie_encoder_decoder",
        "tokenizer_class",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "use_cache",
        "use_sliding_window",
        "vocab_size",
        "unsloth_fixed",
        "unsloth_version",
    ]
)
READ = frozenset(
    [
        "attention_bias",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "layer_types",
        "max_position_embeddings",
        "mlp_bias",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "original_max_position_embeddings",
        "quantization_config",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "sliding_window",
        "tie_word_embeddings",
    ]
)


def from_hf(raw: Mapping[str, Any]) -> ModelConfig:
    """A `config.json` as a `ModelConfig`, or an `UnsupportedModel` that says what is supported."""
    kind = _architecture(raw)
    _refuse_unknown_keys(raw)
    _refuse_unsupported_values(raw)
    qwen = kind in ("qwen2", "qwen3")
    heads = int(_need(raw, "num_attention_heads"))
    hidden = int(_need(raw, "hidden_size"))
    bias = bool(raw.get("attention_bias"))
    classes = len(classifier_labels(raw))
    rope = rope_from_hf(raw)
    return ModelConfig(
        architecture=kind,
        vocab_size=int(_need(raw, "vocab_size")),
        hidden_size=hidden,
        num_layers=int(_need(raw, "num_hidden_layers")),
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=_head_dim(raw, kind, hidden, heads),
        mlp_size=int(_need(raw, "intermediate_size")),
        max_position=_max_position(raw, qwen, rope),
        rms_eps=float(_need(raw, "rms_norm_eps")),
        rope=rope,
        tied=bool(raw.get("tie_word_embeddings", False)) and not classes,
        qk_norm=kind == "qwen3",
        qkv_bias=kind == "qwen2" or bias,
        out_bias=bias,
        mlp_bias=bool(raw.get("mlp_bias")),
        num_labels=classes,
    )


def classifier_labels(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the classes of a `*ForSequenceClassification`, in order; () of other models. As in transformers
    there are two, LABEL_0 and LABEL_1, where the configuration says nothing."""
    if list(raw.get("architectures") or ()) != [CLASSIFIERS.get(str(raw.get("model_type")))]:
        return ()
    named = raw.get("id2label")
    if named is None:
        return tuple(f"LABEL_{n}" for n in range(int(raw.get("num_labels") or 2)))
    try:
        return tuple(str(named[str(n)]) for n in range(len(named)))
    except (KeyError, TypeError) as error:
        raise UnsupportedModel(f"id2label must name the classes 0, 1, ... in order; got {named!r}") from error


def _architecture(raw: Mapping[str, Any]) -> str:
    supported = ", ".join(f"{kind} ({name})" for kind, name in ARCHITECTURES.items())
    kind = raw.get("model_type")
    if kind not in ARCHITECTURES:
        raise UnsupportedModel(f"model_type {kind!r} is not supported; supported: {supported}")
    named = raw.get("architectures")
    if named and list(named) not in ([ARCHITECTURES[kind]], [CLASSIFIERS[kind]]):
        classifiers = ", ".join(CLASSIFIERS.values())
        raise UnsupportedModel(f"architectures {named} is not supported; supported: {supported}, {classifiers}")
    return str(kind)


def _refuse_unknown_keys(raw: Mapping[str, Any]) -> None:
    unknown = sorted(k for k, v in raw.items() if k not in HARMLESS | READ and v not in (None, False))
    if unknown:
        raise UnsupportedModel(
            f"config keys that onepass does not know and so will not ignore: {', '.join(unknown)}; "
            f"supported: {', '.join(sorted(READ))}"
        )


def _refuse_unsupported_values(raw: Mapping[str, Any]) -> None:
    if raw.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"hidden_act must be 'silu'; got {raw['hidden_act']!r}")
    other = sorted(set(raw.get("layer_types") or ()) - {"full_attention"})
    if other:
        raise UnsupportedModel(f"layer_types must all be 'full_attention'; got {', '.join(other)}")
    kind = raw["model_type"]
    if raw.get("attention_bias") and kind not in ("llama", "qwen3"):
        raise UnsupportedModel(f"attention_bias=true is supported for llama and qwen3; the model_type is {kind!r}")
    if raw.get("mlp_bias") and kind != "llama":
        raise UnsupportedModel(f"mlp_bias=true is supported for llama; the model_type is {kind!r}")
    if raw.get("rope_interleaved"):
        raise UnsupportedModel("rope_interleaved=true is not supported; supported: half-split rotary positions")


def _head_dim(raw: Mapping[str, Any], kind: str, hidden: int, heads: int) -> int:
    if raw.get("head_dim"):
        return int(raw["head_dim"])
    if kind == "qwen3":
        return 128  # transformers' default for Qwen3 does not follow hidden_size
    if hidden % heads:
        raise UnsupportedModel(f"hidden_size {hidden} is not a multiple of {heads} heads, and there is no head_dim")
    return hidden // heads


def _max_position(raw: Mapping[str, Any], qwen: bool, rope: Rope) -> int:
    """A sliding window is exact as long as nothing is longer than it, so the window becomes the limit. Yarn stretches
    the original length by its factor, also where the config keeps the shorter limit."""
    limit = int(_need(raw, "max_position_embeddings"))
    if rope.kind == "yarn":
        limit = max(limit, int(rope.original_max_position * rope.factor))
    window = raw.get("sliding_window")
    if qwen and not raw.get("use_sliding_window"):
        window = None
    return min(limit, int(window)) if window else limit


def _need(raw: Mapping[str, Any], key: str) -> Any:
    if raw.get(key) is None:
        raise UnsupportedModel(f"config.json must have {key!r}; it has {', '.join(sorted(raw))}")
    return raw[key]
