"""Products with other work at their end equal the same done in parts, in Pallas's GPU interpreter.

With ONEPASS_TEST_PLATFORM=cuda on a Hopper GPU the same comparisons run compiled.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from onepass.models.hopper_products import Heads, gated_product, gated_takes, heads_product, heads_take
from onepass.models.known import KNOWN
from onepass.models.layers import finish_k, finish_q, gate_up, rotary_angles
from onepass.models.products import HopperProducts, XlaProducts
from onepass.models.weights import Layers

ON_GPU = jax.default_backend() == "gpu"
INTERPRET: Any = (
    False if ON_GPU else plgpu.InterpretGPUParams(out_of_bounds_reads="uninitialized", uninitialized_memory="zero")
)
TOKENS, SIZE, LAYERS = 512, 128, 3


def draw(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)


def layers_of(**leaves: Any) -> Layers:
    return Layers(**{**dict.fromkeys(Layers.__dataclass_fields__), **leaves})


def close(got: Any, wanted: Any) -> bool:
    got, wanted = np.asarray(got, np.float32), np.asarray(wanted, np.float32)
    return bool((np.abs(got.reshape(wanted.shape) - wanted) <= 0.02 * np.abs(wanted) + 0.05).all())


def test_the_gated_product_equals_product_and_activation() -> None:
    """Several tiles of tokens and of columns, one program for all; only the layer that was asked for will do."""
    x, weights = draw(0, TOKENS, SIZE), draw(1, LAYERS, 2, 256, SIZE) * 0.1
    got = gated_product(x, weights, jnp.int32(1), 2, INTERPRET)
    wanted = [gate_up(layers_of(gate_up=weights[n]), x[None]) for n in range(LAYERS)]
    assert [close(got, one) for one in wanted] == [False, True, False]


@pytest.mark.parametrize("normed", [True, False], ids=["norms", "bias"])
def test_the_product_of_heads_equals_product_norm_and_rotation(normed: bool) -> None:
    """With norms as Qwen3 has them, with a bias as Qwen2.5; q, k and v of a KV head with a group of two."""
    config = KNOWN["qwen3-0.6b"]
    x, qkv = draw(0, 256, SIZE), draw(1, LAYERS, 1, 4, 128, SIZE) * 0.1
    norms = (draw(2, LAYERS, 128), draw(3, LAYERS, 128)) if normed else (None, None)
    bias = None if normed else draw(4, LAYERS, 1, 4, 128)
    angles = rotary_angles(config, jnp.arange(256)[None] * 7)
    ends = Heads(angles[0][0], angles[1][0], *norms, bias, config.rms_eps)
    q, k, v = heads_product(x, qkv, jnp.int32(2), ends, 2, INTERPRET)
    layer = layers_of(q_norm=norms[0], k_norm=norms[1]).layer(2)
    fused = jnp.einsum("td,hsnd->thsn", x, qkv[2])[None] + (0 if bias is None else bias[2])
    assert close(q, finish_q(config, layer, fused[:, :, :, :2], angles))
    assert close(k, finish_k(config, layer, fused[:, :, :, 2], angles))
    assert close(v, fused[:, :, :, 3])
    assert not close(q, finish_q(config, layer, fused[:, :, :, :2], rotary_angles(config, jnp.arange(256)[None])))


def test_shapes_that_are_not_whole_tiles_are_left_to_xla() -> None:
    weights, heads = draw(1, LAYERS, 2, 256, SIZE), draw(1, LAYERS, 2, 4, 128, SIZE)
    assert (gated_takes(512, weights), heads_take(512, heads)) == (True, True)
    assert (gated_takes(500, weights), heads_take(500, heads)) == (False, False)
    assert not gated_takes(512, draw(1, LAYERS, 2, 200, SIZE)), "columns"
    assert not heads_take(512, draw(1, LAYERS, 2, 4, 64, SIZE)), "heads of 64"
    layers, x = layers_of(gate_up=weights), draw(0, 1, 48, SIZE)
    assert np.array_equal(HopperProducts(132).gated(layers, 1, x), XlaProducts().gated(layers, 1, x))
