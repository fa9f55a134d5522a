"""Shapes known by name, for models of random weights."""

import pytest

from onepass.errors import ModelNotFound
from onepass.models.known import KNOWN, known_config


def test_the_contract_model_is_the_one_of_the_figures() -> None:
    config = known_config("qwen3-0.6b")
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (28, 1024, 16, 8)
    assert (config.head_dim, config.mlp_size, config.vocab_size) == (128, 3072, 151936)


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(ModelNotFound, match=r"'qwen9'; known: qwen3-0\.6b, .*smollm2-135m"):
        known_config("qwen9")


@pytest.mark.parametrize("name", KNOWN)
def test_names_say_the_architecture(name: str) -> None:
    family = {"qwen3": "qwen3", "qwen2": "qwen2", "llama": "llama", "smoll": "llama"}[name[:5]]
    assert KNOWN[name].architecture == family
