"""A config.json is read strictly: what changes the network and is not computed here is an error that says so."""

import math
from typing import Any

import pytest

from checkpoints import VARIANTS
from onepass.errors import UnsupportedModel
from onepass.models.config import ModelConfig
from onepass.models.hf_config import classifier_labels, from_hf
from onepass.models.rope import Rope


def raw(name: str = "llama2", **changes: Any) -> dict[str, Any]:
    return {**VARIANTS[name], "vocab_size": 600, **changes}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_supported_dialect_is_read(name: str) -> None:
    config = from_hf(raw(name))
    written = VARIANTS[name]
    assert config.architecture == written["model_type"]
    assert (config.vocab_size, config.hidden_size, config.num_layers, config.num_heads, config.num_kv_heads) == (
        600,
        written["hidden_size"],
        written["num_hidden_layers"],
        written["num_attention_heads"],
        written["num_key_value_heads"],
    )
    assert config.head_dim == written.get("head_dim", config.hidden_size // config.num_heads)
    assert config.group * config.num_kv_heads == config.num_heads
    assert config.tied == written["tie_word_embeddings"]
    assert config.rms_eps == written["rms_norm_eps"]
    assert config.qk_norm == name.startswith("qwen3")
    assert config.qkv_bias == (name.startswith("qwen2") or name == "llama-bias")
    assert (config.out_bias, config.mlp_bias) == ((True, True) if name == "llama-bias" else (False, False))


@pytest.mark.parametrize(
    ("name", "rope"),
    [
        ("llama2", Rope(10000.0)),
        ("qwen3", Rope(1000000.0)),
        ("qwen3-untied", Rope(1000000.0)),
        ("llama3", Rope(500000.0, "llama3", 8.0, 1.0, 4.0, 64)),
        ("llama3-new", Rope(500000.0, "llama3", 8.0, 1.0, 4.0, 64)),
        ("llama-linear", Rope(10000.0, "linear", 4.0)),
        ("qwen2-yarn", Rope(10000.0, "yarn", 16.0, original_max_position=64, attention_factor=0.1 * math.log(16) + 1)),
    ],
)
def test_rotary_positions_are_read_in_old_and_new_style(name: str, rope: Rope) -> None:
    assert from_hf(raw(name)).rope == rope


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported; supported: qwen3 (Qwen3ForCausalLM)"),
        ({"model_type": None}, "model_type None"),
        ({"architectures": ["LlamaForTokenClassification"]}, "LlamaForTokenClassification"),
        (
            {"architectures": ["LlamaForSequenceClassification"], "id2label": {"1": "a"}},
            "id2label must name the classes 0, 1, ... in order",
        ),
        ({"architectures": ["Qwen2ForCausalLM"]}, "architectures ['Qwen2ForCausalLM']"),
        ({"attn_logit_softcapping": 30.0}, "will not ignore: attn_logit_softcapping"),
        ({"num_experts": 8, "moe_size": 4}, "will not ignore: moe_size, num_experts"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu'; got 'gelu'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "got sliding_attention"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "rope type 'longrope' is not supported"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "supported: default, linear, llama3, yarn"),
        ({"rope_scaling": {"type": "yarn", "factor": 0.5}}, "needs a factor of at least 1"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "sharpness": 3}}, "takes factor and optionally"),
        (
            {"rope_scaling": {"type": "yarn", "beta_fast": 32}},
            "takes factor and optionally attention_factor, beta_fast",
        ),
        ({"rope_scaling": {"type": "linear"}}, "takes factor; got nothing"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "takes factor, high_freq_factor"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "attention_factor": 0.5}}, "attention_factor"),
        ({"num_key_value_heads": 3}, "multiple of the KV heads; got 4 and 3"),
        ({"head_dim": 15}, "head_dim must be even"),
        ({"hidden_size": 65, "head_dim": None}, "65 is not a multiple of 4 heads"),
        ({"hidden_size": None}, "must have 'hidden_size'"),
        ({"rms_norm_eps": None}, "must have 'rms_norm_eps'"),
    ],
    ids=str,
)
def test_what_is_not_computed_here_is_refused_by_name(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        from_hf(raw(**changes))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes"),
    [("qwen2", {"attention_bias": True}), ("mistral", {"attention_bias": True}), ("qwen3", {"mlp_bias": True})],
)
def test_biases_an_architecture_does_not_have_are_refused(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match="is supported for llama"):
        from_hf(raw(name, **changes))


def test_keys_that_switch_something_off_are_harmless() -> None:
    assert from_hf(raw(use_magic=False, magic_size=None)) == from_hf(raw())


def test_a_sliding_window_limits_the_length() -> None:
    """Within the window, sliding and full attention are the same; beyond it, nothing is scored."""
    assert from_hf(raw("mistral", sliding_window=100)).max_position == 100
    assert from_hf(raw("mistral", sliding_window=100_000)).max_position == 1024
    assert from_hf(raw("mistral", sliding_window=None)).max_position == 1024
    assert from_hf(raw("qwen2", sliding_window=100, use_sliding_window=True)).max_position == 100


def test_a_window_that_is_switched_off_is_no_limit() -> None:
    """Qwen writes the window's size even where it is not used."""
    assert from_hf(raw("qwen2", sliding_window=100, use_sliding_window=False)).max_position == 1024


def test_yarn_stretches_the_length() -> None:
    """As other engines do, also where the config keeps the length before yarn."""
    yarn = {"type": "yarn", "factor": 4.0}
    assert from_hf(raw("qwen2", rope_scaling=yarn)).max_position == 4096
    assert from_hf(raw("qwen2", rope_scaling=yarn | {"original_max_position_embeddings": 64})).max_position == 1024
    assert from_hf(raw("qwen2", rope_scaling=yarn)).rope.original_max_position == 1024
    top = from_hf(raw("qwen2", rope_scaling=yarn, original_max_position_embeddings=512))
    assert (top.rope.original_max_position, top.max_position) == (512, 2048)


def test_as_many_kv_heads_as_heads_is_the_default() -> None:
    assert from_hf(raw(num_key_value_heads=None)).num_kv_heads == 4


def test_qwen3_heads_do_not_follow_the_hidden_size() -> None:
    assert from_hf(raw("qwen3", head_dim=None)).head_dim == 128


def test_parameters_and_kv_bytes_are_counted() -> None:
    config = ModelConfig("llama", 10, 4, 2, 2, 1, 2, 6, 64, 1e-5, Rope(1e4), tied=False)
    attention = 4 * (2 + 1 + 1) * 2 + 2 * 2 * 4
    assert config.num_parameters == 2 * (attention + 3 * 4 * 6 + 2 * 4) + 4 + 2 * 10 * 4
    assert config.kv_bytes_per_token(2) == 2 * 2 * 1 * 2 * 2


def test_a_classifier_has_a_row_per_class_and_no_tied_head() -> None:
    architectures = ["LlamaForSequenceClassification"]
    named = raw(architectures=architectures, id2label={"0": "spam", "1": "ham", "2": "eggs"}, tie_word_embeddings=True)
    config = from_hf(named)
    assert (config.num_labels, config.tied) == (3, False)
    assert classifier_labels(named) == ("spam", "ham", "eggs")
    assert classifier_labels(raw(architectures=architectures)) == ("LABEL_0", "LABEL_1"), "as in transformers"
    assert classifier_labels(raw()) == ()
    assert from_hf(raw()).num_labels == 0
