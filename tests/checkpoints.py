"""Makes tiny random Hugging Face checkpoints, one per architecture and config dialect, for every test that loads one.

Only numpy, safetensors and tokenizers are used, so that the files are no work of what is under test. Tensor shapes are
derived here a second time on purpose; how onepass derives them is `onepass.models.weights`.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

Config = dict[str, Any]

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
VOCABULARY = 600
# Text to learn merges from. " yes" and " no" and a few answers must become single tokens, hence the last lines.
LEARNT_TEXT = [
    "The quick brown fox jumps over the lazy dog and runs away from the river bank.",
    "Is this document relevant to the question? Answer with yes or no, and nothing else.",
    "A user liked the film about a space ship; will the same user like the next film about the sea?",
    "Water boils at 100 degrees Celsius; the capital of France is Paris, and of Italy it is Rome.",
    "def score(query, items):\n    return [probability(query + item) for item in items]\n",
    "Zürich, São Paulo and 東京 are cities; the café is open from 8:30 to 17:45 on weekdays.",
    "The price of the shoes was 49.90 and the size was 42, but the colour in the picture was wrong.",
    "Please recommend a warm winter jacket, a light rain coat or another present for my younger brother.",
    "Although the weather forecast promised sunshine, thousands of visitors carried large black umbrellas.",
    "import json\n\nclass Ranking:\n    def __init__(self, names: list[str]) -> None:\n        self.names = names\n",
    *[" yes no yes no true false good bad Paris Rome"] * 20,
]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _new_style(model_type: str, /, **changes: Any) -> Config:
    """The keys that transformers 5 writes for every architecture here."""
    return {
        "architectures": [ARCHITECTURES[model_type]],
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "dtype": "float32",
        "eos_token_id": 1,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 1024,
        "model_type": model_type,
        "pad_token_id": None,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False,
        "transformers_version": "5.22.2",
        "use_cache": True,
        **changes,
    }


def _old_style(model_type: str, /, **changes: Any) -> Config:
    """The keys that transformers 4 wrote: `torch_dtype`, and `rope_theta` on the top level."""
    config = _new_style(model_type, torch_dtype="float32", transformers_version="4.44.2", **changes)
    del config["dtype"], config["pad_token_id"]
    return config


def _shape(hidden: int, layers: int, heads: int, kv_heads: int, mlp: int) -> Config:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": mlp,
    }


def _llama(**changes: Any) -> Config:
    return {"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1, **changes}


# original_max_position_embeddings is far below the lengths that tests score, so that the scaling decides the result.
LLAMA3_SCALING: Config = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 64,
    "rope_type": "llama3",
}
YARN_SCALING: Config = {"factor": 16.0, "original_max_position_embeddings": 64, "type": "yarn"}
NO_WINDOW: Config = {"sliding_window": None, "use_sliding_window": False}
FULL_ATTENTION = ["full_attention"] * 2
OLD_QWEN2: Config = {
    "max_window_layers": 2,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
    "use_sliding_window": False,
}
OLD_QWEN3: Config = {**OLD_QWEN2, "attention_bias": False, "rope_scaling": None, "sliding_window": None}
OLD_LLAMA3 = _llama(rope_theta=500000.0, rope_scaling=LLAMA3_SCALING, rms_norm_eps=1e-05)
NEW_ROPE_1E6: Config = {"rope_theta": 1000000.0, "rope_type": "default"}

VARIANTS: dict[str, Config] = {
    "qwen3": _new_style(
        "qwen3",
        **_shape(64, 2, 4, 2, 96),
        **NO_WINDOW,
        attention_bias=False,
        head_dim=24,
        layer_types=FULL_ATTENTION,
        max_window_layers=2,
        rope_parameters=NEW_ROPE_1E6,
        tie_word_embeddings=True,
    ),
    "qwen3-untied": _old_style("qwen3", **_shape(48, 3, 4, 1, 80), **OLD_QWEN3, head_dim=16),
    "qwen2": _old_style("qwen2", **_shape(64, 2, 8, 2, 96), **OLD_QWEN2, tie_word_embeddings=True),
    "qwen2-new": _new_style(
        "qwen2",
        **_shape(48, 2, 4, 4, 80),
        **NO_WINDOW,
        layer_types=FULL_ATTENTION,
        max_window_layers=2,
        rope_parameters=NEW_ROPE_1E6,
    ),
    "llama2": _old_style("llama", **_shape(64, 2, 4, 4, 96), **_llama(rope_theta=10000.0, rope_scaling=None)),
    "llama3": _old_style("llama", **_shape(96, 2, 6, 2, 128), **OLD_LLAMA3),
    "llama3-new": _new_style(
        "llama",
        **_shape(64, 3, 4, 2, 96),
        **_llama(),
        head_dim=16,
        rope_parameters={**LLAMA3_SCALING, "rope_theta": 500000.0},
        tie_word_embeddings=True,
    ),
    "llama-linear": _old_style(
        "llama",
        **_shape(48, 2, 3, 1, 96),
        **_llama(rope_theta=10000.0, rope_scaling={"type": "linear", "factor": 4.0}),
    ),
    "llama-bias": _new_style(
        "llama",
        **_shape(64, 2, 4, 2, 96),
        **_llama(attention_bias=True, mlp_bias=True),
        head_dim=16,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
    ),
    "qwen2-yarn": _old_style(
        "qwen2",
        **_shape(64, 2, 4, 2, 96),
        **{**OLD_QWEN2, "rope_theta": 10000.0},
        rope_scaling=YARN_SCALING,
        tie_word_embeddings=True,
    ),
    "llama-yarn-mscale": _new_style(
        "llama",
        **_shape(96, 2, 3, 1, 96),
        **_llama(),
        head_dim=32,
        rope_parameters={
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "factor": 32.0,
            "mscale": 1.2,
            "mscale_all_dim": 0.7,
            "original_max_position_embeddings": 32,
            "rope_theta": 5000.0,
            "rope_type": "yarn",
            "truncate": False,
        },
    ),
    "smollm2": _old_style(
        "llama",
        **_shape(72, 3, 9, 3, 128),
        **_llama(rope_theta=100000.0, rope_scaling=None, rope_interleaved=False, is_llama_config=True),
        tie_word_embeddings=True,
    ),
    "mistral": _old_style("mistral", **_shape(48, 2, 4, 2, 96), head_dim=16, rope_theta=1000000.0, sliding_window=None),
}


def make_checkpoint(folder: Path | str, name: str, seed: int = 0, shards: int = 1, dtype: str = "float32") -> Path:
    """Write the variant `name` into `folder` (made where missing) and return the folder; same arguments, same bytes."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer, tokenizer_config = make_tokenizer(name)
    config = dict(VARIANTS[name], vocab_size=tokenizer.get_vocab_size())
    config["dtype" if "dtype" in config else "torch_dtype"] = dtype
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    _write_json(folder / "config.json", config)
    _write_tensors(folder, random_tensors(config, seed, dtype), shards)
    return folder


def tensor_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Every tensor of a Hugging Face checkpoint with this config, [out, in], in a fixed order."""
    hidden, mlp, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    q_size, kv_size = heads * head_dim, config["num_key_value_heads"] * head_dim
    attention_bias = bool(config.get("attention_bias"))
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}

    def linear(name: str, size_out: int, size_in: int, bias: bool) -> None:
        shapes[f"{name}.weight"] = (size_out, size_in)
        if bias:
            shapes[f"{name}.bias"] = (size_out,)

    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        shapes[f"{layer}.input_layernorm.weight"] = (hidden,)
        for part, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
            linear(f"{layer}.self_attn.{part}_proj", size, hidden, attention_bias or config["model_type"] == "qwen2")
        linear(f"{layer}.self_attn.o_proj", hidden, q_size, attention_bias)
        if config["model_type"] == "qwen3":
            shapes[f"{layer}.self_attn.q_norm.weight"] = shapes[f"{layer}.self_attn.k_norm.weight"] = (head_dim,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
        for part, size_out, size_in in (("gate", mlp, hidden), ("up", mlp, hidden), ("down", hidden, mlp)):
            linear(f"{layer}.mlp.{part}_proj", size_out, size_in, bool(config.get("mlp_bias")))
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def random_tensors(config: Config, seed: int, dtype: str) -> dict[str, np.ndarray]:
    """Uniform values: exact on every machine, unlike normal ones, which pass through the C library's `log`."""
    random = np.random.default_rng(seed)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        low, high = _value_range(name, shape)
        values = random.random(shape, dtype=np.float32) * np.float32(high - low) + np.float32(low)
        tensors[name] = values.astype(kind)
    return tensors


def _value_range(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Chosen so that every part shows in the result and the logits' deviation is about 2.5 (a top token of 5-90 %)."""
    if name.endswith("norm.weight"):
        return 0.5, 1.5
    if name.endswith(".bias"):
        return -0.8, 0.8
    deviation = 2.5 if name.startswith(("model.embed_tokens", "lm_head")) else 1.4
    half = float(deviation * np.sqrt(3.0 / shape[1]))
    return -half, half


def _write_tensors(folder: Path, tensors: dict[str, np.ndarray], shards: int) -> None:
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    _write_json(folder / "model.safetensors.index.json", index)


def _write_json(path: Path, value: Config) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def make_tokenizer(name: str) -> tuple[Tokenizer, Config]:
    """A small byte-level BPE in the manner of the variant's family, and its tokenizer_config.json."""
    others: tuple[str, ...]
    if name in ("llama2", "mistral"):
        begin, end, others = "<s>", "</s>", ("<unk>",)
    elif name.startswith("llama"):
        begin, end, others = "<|begin_of_text|>", "<|end_of_text|>", ()
    else:
        begin, end, others = "<|endoftext|>", "<|im_end|>", ("<|im_start|>",)
    adds_begin = begin != "<|endoftext|>"
    tokenizer = Tokenizer.from_str(_train(begin, end, others, adds_begin))
    config: Config = {
        "added_tokens_decoder": {str(tokenizer.token_to_id(token)): _added(token) for token in (begin, end, *others)},
        "bos_token": begin if adds_begin else None,
        "clean_up_tokenization_spaces": False,
        "eos_token": end,
        "model_max_length": VARIANTS[name]["max_position_embeddings"],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    if not adds_begin:
        config["chat_template"] = CHAT_TEMPLATE
    return tokenizer, config


def _added(token: str) -> Config:
    return {
        "content": token,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": True,
    }


@cache
def _train(begin: str, end: str, others: tuple[str, ...], adds_begin: bool) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in (begin, end, *others)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LEARNT_TEXT, trainer)
    if adds_begin:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A $B", special_tokens=[(begin, tokenizer.token_to_id(begin))]
        )
    return str(tokenizer.to_str())
