"""A Hugging Face folder as a CTranslate2 model: its specification filled from the safetensors file, without PyTorch.

CTranslate2's own converter wants transformers, torch and a tokenizer; the folders of jobs have no tokenizer. Ids are
their own names in the vocabulary. Knows Llama and Qwen3 with plain rotation; scoring is `ctranslate2_peer`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from ctranslate2.specs import common_spec, transformer_spec

Tensors = dict[str, np.ndarray]


def convert(folder: Path, out: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = read_tensors(folder / "model.safetensors")
    spec = _spec(config)
    _fill(spec.decoder, tensors, config)
    spec.register_vocabulary([str(number) for number in range(config["vocab_size"])])
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = "0"
    spec.config.layer_norm_epsilon = config["rms_norm_eps"]
    spec.validate()
    spec.optimize()
    out.mkdir()
    spec.save(str(out))


def read_tensors(path: Path) -> Tensors:
    """All tensors in float32; bfloat16 is the upper half of a float32."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    data = np.memmap(path, np.uint8, "r", offset=8 + size)
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        raw = np.array(data[start:end])
        if entry["dtype"] == "BF16":
            values = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        elif entry["dtype"] in ("F32", "F16"):
            values = raw.view({"F32": np.float32, "F16": np.float16}[entry["dtype"]]).astype(np.float32)
        else:
            raise ValueError(f"{name} should be F32, F16 or BF16; it is {entry['dtype']}")
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def _spec(config: dict[str, Any]) -> Any:
    kind, rope = config["model_type"], config.get("rope_parameters") or config.get("rope_scaling") or {}
    if kind not in ("llama", "qwen3") or rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ValueError(f"this runner knows llama and qwen3 with plain rotation; got {kind} with {rope}")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return transformer_spec.TransformerDecoderModelSpec.from_config(
        config["num_hidden_layers"],
        heads,
        activation=common_spec.Activation.SWISH,
        pre_norm=True,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=head_dim,
        rotary_interleave=False,
        rotary_base=config.get("rope_theta") or rope["rope_theta"],
        num_heads_kv=None if kv_heads == heads else kv_heads,
        head_dim=head_dim,
        qk_norm=kind == "qwen3",
    )


def _fill(decoder: Any, tensors: Tensors, config: dict[str, Any]) -> None:
    embeddings = tensors["model.embed_tokens.weight"]
    decoder.scale_embeddings = False
    decoder.embeddings.weight = embeddings
    decoder.layer_norm.gamma = tensors["model.norm.weight"]
    decoder.projection.weight = embeddings if config["tie_word_embeddings"] else tensors["lm_head.weight"]
    for number, layer in enumerate(decoder.layer):
        prefix = f"model.layers.{number}."
        _fill_layer(layer, {name.removeprefix(prefix): value for name, value in tensors.items() if prefix in name})


def _fill_layer(layer: Any, own: Tensors) -> None:
    attention, mlp = layer.self_attention, layer.ffn
    attention.layer_norm.gamma = own["input_layernorm.weight"]
    mlp.layer_norm.gamma = own["post_attention_layernorm.weight"]
    if "self_attn.q_norm.weight" in own:
        attention.q_norm.gamma = own["self_attn.q_norm.weight"]
        attention.k_norm.gamma = own["self_attn.k_norm.weight"]
    _linear(attention.linear[0], own, ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"])
    _linear(attention.linear[1], own, ["self_attn.o_proj"])
    _linear(mlp.linear_0, own, ["mlp.gate_proj"])
    _linear(mlp.linear_0_noact, own, ["mlp.up_proj"])
    _linear(mlp.linear_1, own, ["mlp.down_proj"])


def _linear(spec: Any, own: Tensors, names: list[str]) -> None:
    spec.weight = np.concatenate([own[f"{name}.weight"] for name in names])
    if f"{names[0]}.bias" in own:
        spec.bias = np.concatenate([own[f"{name}.bias"] for name in names])
