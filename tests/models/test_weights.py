"""One abstract tree states every weight: it agrees with the checkpoints' tensors and with what random init makes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints import VARIANTS, tensor_shapes
from onepass.models.config import ModelConfig
from onepass.models.hf_config import from_hf
from onepass.models.known import KNOWN
from onepass.models.random import random_weights
from onepass.models.rope import Rope
from onepass.models.weights import Weights, abstract, is_leaf, named_leaves

SMALL = ModelConfig("qwen3", 64, 32, 2, 4, 2, 8, 48, 64, 1e-6, Rope(1e4), tied=False, qk_norm=True)


@pytest.fixture(scope="module")
def small() -> Weights:
    return random_weights(SMALL, jnp.dtype("bfloat16"), seed=3)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_tree_names_every_tensor_of_the_checkpoint_with_its_shape(name: str) -> None:
    """Shapes were derived twice, here and in tests/checkpoints.py."""
    raw = {**VARIANTS[name], "vocab_size": 600}
    stated = {
        part.name.format(layer=layer): part.shape
        for _, leaf in named_leaves(abstract(from_hf(raw)))
        for layer in range(leaf.shape[0] if leaf.stacked else 1)
        for part in leaf.parts
    }
    assert stated == tensor_shapes(raw)


@pytest.mark.parametrize("name", KNOWN)
def test_the_tree_has_as_many_parameters_as_the_config_counts(name: str) -> None:
    config = KNOWN[name]
    assert sum(int(np.prod(leaf.shape)) for _, leaf in named_leaves(abstract(config))) == config.num_parameters


@pytest.mark.parametrize(
    ("name", "billions"),
    [("qwen3-0.6b", 0.596), ("qwen2.5-1.5b", 1.544), ("llama-3.2-1b", 1.236), ("smollm2-135m", 0.1345)],
)
def test_known_models_are_of_the_size_they_are_called(name: str, billions: float) -> None:
    assert KNOWN[name].num_parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_random_weights_fill_the_tree(small: Weights) -> None:
    weights = small
    leaves, structure = jax.tree.flatten(abstract(SMALL), is_leaf=is_leaf)
    made, made_structure = jax.tree.flatten(weights)
    assert structure == made_structure
    for leaf, array in zip(leaves, made, strict=True):
        assert array.shape == leaf.shape
        assert array.dtype == "bfloat16"
        if leaf.init == 1.0:
            assert (np.asarray(array, np.float32) == 1).all()
        else:
            assert np.asarray(array, np.float32).std() == pytest.approx(leaf.init, rel=0.2)


def test_random_weights_follow_their_seed_and_differ_by_layer(small: Weights) -> None:
    again, other = (random_weights(SMALL, jnp.dtype("bfloat16"), seed) for seed in (3, 4))
    for leaf in ("qkv", "down"):
        assert (getattr(small.layers, leaf) == getattr(again.layers, leaf)).all()
        assert not (getattr(small.layers, leaf) == getattr(other.layers, leaf)).all()
        assert not (getattr(small.layers, leaf)[0] == getattr(small.layers, leaf)[1]).all()


def test_a_tied_model_reads_out_with_its_embedding(small: Weights) -> None:
    assert small.unembed is small.head
    tied = abstract(from_hf({**VARIANTS["qwen3"], "vocab_size": 600}))
    assert tied.head is None
    assert tied.unembed is tied.embed


def test_a_layer_is_a_slice_of_the_stack(small: Weights) -> None:
    layer = small.layers.layer(1)
    assert (layer.qkv == small.layers.qkv[1]).all()
    assert layer.qkv_bias is None
