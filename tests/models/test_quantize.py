"""Weights in 8 bits are the same function within their rounding, and nothing that meets them leaves their range."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onepass.models.known import KNOWN
from onepass.models.layers import gate_up, project_qkv, rms_norm, rotary_angles
from onepass.models.layout import Layout
from onepass.models.quantize import EIGHT_BIT, LARGEST, in_eight_bits, unit
from onepass.models.random import random_weights
from onepass.models.weights import Weights
from onepass.scorer import Scorer

MODELS = ("qwen3-0.6b", "qwen2.5-1.5b")  # with norms of heads, with a bias


def small(name: str) -> tuple[Weights, Weights]:
    config = replace(KNOWN[name], num_layers=2, hidden_size=64, mlp_size=96, vocab_size=50)
    plain = random_weights(config, jnp.bfloat16)
    uneven = jnp.linspace(0.1, 3, 64).astype(jnp.bfloat16)  # norms of a trained model are not ones
    plain = replace(plain, layers=replace(plain.layers, attention_norm=plain.layers.attention_norm * uneven))
    return plain, in_eight_bits(plain)


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_computes_the_same_within_the_rounding_of_its_weights(name: str) -> None:
    """Queries and keys as before; values and activations in units of their own, which the next product takes back."""
    config = replace(KNOWN[name], hidden_size=64, mlp_size=96)
    plain, narrow = small(name)
    x = jax.random.normal(jax.random.key(0), (32, 64))
    angles = rotary_angles(config, jnp.arange(32))

    def computed(weights: Weights) -> list[np.ndarray]:
        layer = weights.layers.layer(1)
        q, k, v = project_qkv(config, layer, rms_norm(x, layer.attention_norm, 1e-6), angles)
        merged = jnp.repeat(v[:, :, None], config.group, axis=2)
        out = jnp.einsum("thgd,nhgd->tn", merged, layer.out)
        act = gate_up(layer, rms_norm(x, layer.mlp_norm, 1e-6))
        down = jnp.einsum("tf,nf->tn", act, layer.down)
        return [np.asarray(a, np.float32) for a in (q, k, out, down)]

    for before, after in zip(computed(plain), computed(narrow), strict=True):
        assert np.abs(after - before).mean() < 0.06 * np.abs(before).mean(), "e4m3 has three bits"
    assert narrow.layers.qkv.dtype == narrow.layers.down.dtype == EIGHT_BIT
    assert narrow.embed.dtype == jnp.bfloat16


@pytest.mark.parametrize("name", MODELS)
def test_nothing_leaves_the_range_even_for_the_worst_of_inputs(name: str) -> None:
    """A row that points where a row of weights does makes the largest value, and the largest activation."""
    config = replace(KNOWN[name], hidden_size=64, mlp_size=96)
    plain, narrow = small(name)
    layer = narrow.layers.layer(0)
    wide = np.asarray(plain.layers.layer(0).gate_up, np.float32).reshape(-1, 64)
    values = np.asarray(plain.layers.qkv[0, :, -1], np.float32).reshape(-1, 64)
    x = jnp.asarray(np.concatenate([wide, values, np.eye(64) * 1e4]), jnp.float32)
    normed = rms_norm(x, layer.attention_norm, 1e-6)
    v = project_qkv(config, layer, normed, rotary_angles(config, jnp.zeros(x.shape[0], jnp.int32)))[2]
    act = gate_up(layer, rms_norm(x, layer.mlp_norm, 1e-6))
    assert float(jnp.abs(normed.astype(jnp.float32)).max()) * unit(64) <= LARGEST
    assert 30 < float(jnp.abs(v.astype(jnp.float32)).max()) <= LARGEST
    assert float(jnp.abs(act.astype(jnp.float32)).max()) <= LARGEST


@pytest.mark.parametrize("size", [64, 896, 1024, 2560, 4096, 8192])
def test_the_unit_fills_at_least_half_of_the_range(size: int) -> None:
    assert LARGEST / 2 < unit(size) * size**0.5 <= LARGEST


def test_a_quantized_model_scores_nearly_the_same_and_is_copied_whole(checkpoint: Callable[[str], Path]) -> None:
    asked = {"query": [1, 2, 3], "items": [[4, 5], [6], [7, 8, 9]], "label_token_ids": [10, 11]}
    options = {"dtype": "bfloat16", "keep_programs": False, "max_batch_tokens": 64, "cache_bytes": 1 << 22}
    plain, narrow = (Scorer.load(str(checkpoint("qwen3")), quantize=how, **options) for how in (None, "fp8"))  # type: ignore[arg-type]
    with plain, narrow:
        before, after = (np.array(s.score(**asked, apply_softmax=True).scores) for s in (plain, narrow))
        assert 0 < np.abs(before - after).max() < 0.05
        copy = Layout(narrow.model.config, None).placed(narrow.weights)
        assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), copy, narrow.weights)))
