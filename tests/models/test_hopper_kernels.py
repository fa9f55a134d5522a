"""Products with other work at their end equal the same done in parts, in Pallas's GPU interpreter.

With ONEPASS_TEST_PLATFORM=cuda on a Hopper GPU the same comparisons run compiled.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from onepass.models.hopper_heads import Heads, heads_product, heads_take
from onepass.models.hopper_kernels import Added, added_product, added_takes, gated_product, gated_takes
from onepass.models.hopper_products import HopperProducts
from onepass.models.hopper_sums import Scaled
from onepass.models.hopper_tiles import place_of, rounds
from onepass.models.known import KNOWN
from onepass.models.layers import finish_k, finish_q, gate_up, rms_norm, rotary_angles
from onepass.models.products import XlaProducts
from onepass.models.quantize import EIGHT_BIT, in_eight_bits
from onepass.models.weights import Layers, abstract, is_leaf

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
    got = gated_product(Scaled(x), weights, jnp.int32(1), 2, INTERPRET)
    wanted = [gate_up(layers_of(gate_up=weights[n]), x[None]) for n in range(LAYERS)]
    assert [close(got, one) for one in wanted] == [False, True, False]


@pytest.mark.parametrize("multiprocessors", [2, 8], ids=["whole pairs", "halves"])
@pytest.mark.parametrize("normed", [True, False], ids=["norms", "bias"])
def test_the_product_of_heads_equals_product_norm_and_rotation(normed: bool, multiprocessors: int) -> None:
    """With norms as Qwen3 has them, with a bias as Qwen2.5; q, k and v of a KV head with a group of two."""
    config = KNOWN["qwen3-0.6b"]
    x, qkv = draw(0, 256, SIZE), draw(1, LAYERS, 1, 4, 128, SIZE) * 0.1
    norms = (draw(2, LAYERS, 128), draw(3, LAYERS, 128)) if normed else (None, None)
    bias = None if normed else draw(4, LAYERS, 1, 4, 128)
    angles = rotary_angles(config, jnp.arange(256)[None] * 7)
    ends = Heads(angles[0][0], angles[1][0], *norms, bias, config.rms_eps)
    q, k, v = heads_product(Scaled(x), qkv, jnp.int32(2), ends, multiprocessors, INTERPRET)
    layer = layers_of(q_norm=norms[0], k_norm=norms[1]).layer(2)
    fused = jnp.einsum("td,hsnd->thsn", x, qkv[2])[None] + (0 if bias is None else bias[2])
    assert close(q, finish_q(config, layer, fused[:, :, :, :2], angles))
    assert close(k, finish_k(config, layer, fused[:, :, :, 2], angles))
    assert close(v, fused[:, :, :, 3])
    assert not close(q, finish_q(config, layer, fused[:, :, :, :2], rotary_angles(config, jnp.arange(256)[None])))


@pytest.mark.parametrize(
    ("tokens", "out", "multiprocessors"),
    [(128, 512, 2), (256, 512, 2), (384, 512, 2), (256, 512, 8), (512, 256, 8), (768, 256, 4), (640, 512, 8)],
)
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
def test_what_is_added_to_the_stream_and_made_ready_for_the_next_norm(
    tokens: int, out: int, multiprocessors: int, with_bias: bool
) -> None:
    """For pairs of multiprocessors that share tokens, and where there are two tiles of these, weights; in whole pairs
    of tiles, in halves, and in whole pairs of which the last are halved."""
    x, weights, norms = draw(0, tokens, SIZE), draw(1, LAYERS, out, SIZE) * 0.1, draw(3, LAYERS, out)
    residual = draw(2, tokens, out).astype(jnp.float32)
    bias = draw(4, LAYERS, out) if with_bias else None
    stream, ready, squares = added_product(
        Scaled(x), weights, jnp.int32(1), Added(residual, bias, norms, on=1), multiprocessors, INTERPRET
    )
    wide = [np.asarray(a, np.float32) for a in (residual, x, weights[1], norms[2])]
    wanted = wide[0] + wide[1] @ wide[2].T + (0 if bias is None else np.asarray(bias[1], np.float32))
    np.testing.assert_allclose(stream, wanted, atol=1e-4)
    assert ready is not None
    assert close(ready, wanted * wide[3])
    np.testing.assert_allclose(squares.sum(axis=1), (wanted**2).sum(axis=1), rtol=1e-5)


def test_sums_are_divided_by_the_size_of_the_row() -> None:
    """As if x had been normed first."""
    x, weights, norm = draw(0, 256, SIZE).astype(jnp.float32), draw(1, LAYERS, 2, 256, SIZE) * 0.1, draw(2, SIZE)
    squares = jnp.stack([(part * part).sum(axis=1) for part in jnp.split(x, 2, axis=1)], axis=1)
    given = Scaled((x * norm.astype(jnp.float32)).astype(jnp.bfloat16), squares, 1e-6)
    got = gated_product(given, weights, jnp.int32(1), 2, INTERPRET)
    normed = rms_norm(x, norm, 1e-6)
    assert close(got, gate_up(layers_of(gate_up=weights[1]), normed[None]))
    assert not close(got, gate_up(layers_of(gate_up=weights[1]), (x * 3).astype(jnp.bfloat16)[None]))


def test_eight_bits_are_multiplied_with_the_scales_of_their_rows() -> None:
    x, weights = draw(0, 256, SIZE).astype(EIGHT_BIT), (draw(1, LAYERS, 2, 256, SIZE) * 8).astype(EIGHT_BIT)
    scales = jnp.abs(draw(2, LAYERS, 512).astype(jnp.float32)) / 64
    got = gated_product(Scaled(x, scales=scales, factor=0.5), weights, jnp.int32(1), 2, INTERPRET)
    assert got.dtype == EIGHT_BIT
    sums = np.asarray(x, np.float32) @ np.asarray(weights[1], np.float32).reshape(512, SIZE).T
    gate, up = np.split(sums * np.asarray(scales[1]) * 0.5, 2, axis=1)
    wanted = gate * up / (1 + np.exp(-gate))
    np.testing.assert_allclose(np.asarray(got, np.float32), wanted, rtol=0.07, atol=0.002)


@pytest.mark.skipif(ON_GPU, reason="there they are compiled")
@pytest.mark.parametrize("dtype", [jnp.bfloat16, EIGHT_BIT], ids=["16 bits", "8 bits"])
@pytest.mark.parametrize("tokens", [128, 640, 4096])
def test_a_layer_lowers_for_a_gpu_that_is_not_here(dtype: Any, tokens: int) -> None:
    """All four products, as the decoder calls them, for few tokens and for many."""
    config = replace(KNOWN["qwen3-0.6b"], num_layers=2)
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), abstract(config), is_leaf=is_leaf
    )
    layers = (shapes if dtype == jnp.bfloat16 else jax.eval_shape(in_eight_bits, shapes)).layers

    def layer(layers: Layers, x: jax.Array, angles: tuple[jax.Array, jax.Array]) -> jax.Array:
        products = HopperProducts(132)
        stream = products.enter(config, layers, x)
        q, _, _ = products.heads(config, layers, 0, stream, angles)
        stream = products.out(config, layers, 0, stream, q)
        return products.leave(products.down(config, layers, 0, stream, products.gated(config, layers, 0, stream)))

    x, turn = (jax.ShapeDtypeStruct((1, tokens, size), jnp.float32) for size in (1024, 64))
    text = jax.jit(layer).trace(layers, x, (turn, turn)).lower(lowering_platforms=("cuda",)).as_text()
    assert [text.count(f"{name}_product") > 0 for name in ("heads", "gated", "added")] == [True] * 3


def test_shapes_that_are_not_whole_tiles_are_left_to_xla() -> None:
    weights, heads = draw(1, LAYERS, 2, 256, SIZE), draw(1, LAYERS, 2, 4, 128, SIZE)
    out = draw(1, LAYERS, 512, SIZE)
    assert (gated_takes(512, weights), heads_take(512, heads), added_takes(512, out)) == (True, True, True)
    assert (gated_takes(500, weights), heads_take(500, heads), added_takes(500, out)) == (False, False, False)
    assert gated_takes(384, weights), "two multiprocessors share tokens"
    assert not gated_takes(384, draw(1, LAYERS, 2, 384, SIZE)), "and must have the same number of tiles"
    assert not gated_takes(512, draw(1, LAYERS, 2, 200, SIZE)), "columns"
    assert not heads_take(512, draw(1, LAYERS, 2, 4, 64, SIZE)), "heads of 64"
    config = replace(KNOWN["qwen3-0.6b"], hidden_size=SIZE)
    layers = layers_of(gate_up=weights, mlp_norm=draw(2, LAYERS, SIZE), attention_norm=draw(3, LAYERS, SIZE))
    x, products = draw(0, 1, 48, SIZE).astype(jnp.float32), HopperProducts(132)
    stream = products.enter(config, layers, x)
    assert np.array_equal(products.leave(stream), x)
    assert np.array_equal(products.gated(config, layers, 1, stream), XlaProducts().gated(config, layers, 1, x))


@pytest.mark.parametrize(("down", "pairs"), [(1, 4), (4, 3), (5, 4), (11, 24), (48, 4)])
def test_every_tile_of_tokens_meets_every_tile_of_weights_once(down: int, pairs: int) -> None:
    """Also where the last group is smaller than the others."""
    places = [tuple(map(int, place_of(number, down, pairs))) for number in range(down * pairs)]
    assert sorted(places) == [(pair, across) for pair in range(down) for across in range(pairs)]


@pytest.mark.parametrize(
    ("units", "programs", "apart", "wanted"),
    [(160, 66, True, (132, 56)), (160, 66, False, (160, 0)), (192, 66, True, (192, 0)), (132, 66, True, (132, 0))],
)
def test_a_last_round_of_few_is_one_of_halves(units: int, programs: int, apart: bool, wanted: tuple[int, int]) -> None:
    """Half as long, where at most half of the programs would have had work."""
    assert rounds(units, programs, apart) == wanted
    assert rounds(33, 66, True) == (0, 66)
