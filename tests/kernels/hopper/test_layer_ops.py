"""Products with other work at their end equal the same done in parts, in Pallas's GPU interpreter, and stop at `count`.

Memory that no kernel wrote is NaN there: what is finite was computed. With ONEPASS_TEST_PLATFORM=cuda on a Hopper GPU
the same comparisons run compiled.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from onepass.kernels.hopper.epilogue import GemmInput
from onepass.kernels.hopper.gate_up import gate_up_product, takes_gate_up
from onepass.kernels.hopper.layer_ops import HopperLayerOps
from onepass.kernels.hopper.qkv import QkvEpilogue, qkv_product, takes_qkv
from onepass.kernels.hopper.residual import (
    ResidualEpilogue,
    columns_for,
    halves_terms,
    residual_product,
    takes_residual,
)
from onepass.kernels.hopper.tiles import TOGETHER, TOKENS, place_of, rounds
from onepass.models.known import KNOWN
from onepass.models.layer_ops import XlaLayerOps
from onepass.models.layers import finish_k, finish_q, gate_up, rms_norm, rotary_angles
from onepass.models.quantize import EIGHT_BIT, in_eight_bits
from onepass.models.weights import Layers, Weights, abstract, is_leaf

ON_GPU = jax.default_backend() == "gpu"
INTERPRET: Any = (
    False if ON_GPU else plgpu.InterpretGPUParams(out_of_bounds_reads="uninitialized", uninitialized_memory="nan")
)
SIZE, LAYERS = 128, 3


def draw(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)


def layers_of(**leaves: Any) -> Layers:
    return Layers(**{**dict.fromkeys(Layers.__dataclass_fields__), **leaves})


def full(x: jax.Array, **more: Any) -> GemmInput:
    return GemmInput(x, jnp.int32(x.shape[0]), **more)


def close(got: Any, wanted: Any) -> bool:
    got, wanted = np.asarray(got, np.float32), np.asarray(wanted, np.float32)
    return bool((np.abs(got.reshape(wanted.shape) - wanted) <= 0.02 * np.abs(wanted) + 0.05).all())


def computed_rows(a: Any) -> int:
    """How many rows were written: the first ones, whole, and no others."""
    finite = np.isfinite(np.asarray(a, np.float32)).reshape(len(a), -1)
    count = int(finite.all(axis=1).sum())
    assert finite[:count].all()
    assert not finite[count:].any()
    return count


def test_gate_up_equals_product_and_activation() -> None:
    """Several tiles of tokens and of columns, one program for all; only the layer that was asked for will do."""
    x, weights = draw(0, 512, SIZE), draw(1, LAYERS, 2, 256, SIZE) * 0.1
    got = gate_up_product(full(x), weights, jnp.int32(1), 2, INTERPRET)
    wanted = [gate_up(layers_of(gate_up=weights[n]), x) for n in range(LAYERS)]
    assert [close(got, one) for one in wanted] == [False, True, False]


@pytest.mark.parametrize(("tokens", "mlp", "multiprocessors"), [(384, 256, 4), (384, 1024, 10), (1280, 256, 6)])
def test_gate_up_in_whole_tiles_and_in_parts_of_them(tokens: int, mlp: int, multiprocessors: int) -> None:
    """In quarters one unit of 3 for 2 programs and two of 12 for 5; in halves, of many tokens, one of 10 for 3."""
    x, weights = draw(0, tokens, SIZE), draw(1, 1, 2, mlp, SIZE) * 0.1
    got = gate_up_product(full(x), weights, jnp.int32(0), multiprocessors, INTERPRET)
    assert close(got, gate_up(layers_of(gate_up=weights[0]), x))


@pytest.mark.parametrize(("tokens", "count"), [(512, 0), (512, 1), (512, 300), (512, 512), (1280, 600), (1280, 257)])
def test_no_tile_is_computed_beyond_the_last_real_token(tokens: int, count: int) -> None:
    """Few tokens are shared by two multiprocessors, a tile after another; of many each takes a tile of a pair."""
    x, weights = draw(0, tokens, SIZE), draw(1, 1, 2, 256, SIZE) * 0.1
    got = gate_up_product(GemmInput(x, jnp.int32(count)), weights, jnp.int32(0), 4, INTERPRET)
    assert close(got[:count], gate_up(layers_of(gate_up=weights[0]), x[:count]))
    if not ON_GPU:
        together = TOKENS if tokens <= 1024 else TOGETHER * TOKENS
        assert computed_rows(got) == -(-count // together) * together


@pytest.mark.parametrize(
    ("normed", "multiprocessors", "count"), [(True, 2, 130), (True, 8, 256), (False, 2, 256), (False, 8, 130)]
)
def test_qkv_equals_product_norm_and_rotation(normed: bool, multiprocessors: int, count: int) -> None:
    """With norms as Qwen3 has them, with a bias as Qwen2.5; q, k and v of a KV head with a group of two."""
    config = KNOWN["qwen3-0.6b"]
    x, qkv = draw(0, 256, SIZE), draw(1, LAYERS, 1, 4, 128, SIZE) * 0.1
    norms = (draw(2, LAYERS, 128), draw(3, LAYERS, 128)) if normed else (None, None)
    bias = None if normed else draw(4, LAYERS, 1, 4, 128)
    angles = rotary_angles(config, jnp.arange(256) * 7)
    ends = QkvEpilogue(*angles, *norms, bias, config.rms_eps)
    given = GemmInput(x, jnp.int32(count))
    got = qkv_product(given, qkv, jnp.int32(2), ends, multiprocessors, INTERPRET)
    q, k, v = (a[:count] for a in got)
    angles = tuple(a[:count] for a in angles)
    layer = layers_of(q_norm=norms[0], k_norm=norms[1]).layer(2)
    fused = jnp.einsum("td,hsnd->thsn", x[:count], qkv[2]) + (0 if bias is None else bias[2])
    assert close(q, finish_q(config, layer, fused[:, :, :2], angles))
    assert close(k, finish_k(config, layer, fused[:, :, 2], angles))
    assert close(v, fused[:, :, 3])
    assert not close(q, finish_q(config, layer, fused[:, :, :2], rotary_angles(config, jnp.arange(count))))


@pytest.mark.parametrize(
    ("tokens", "count", "out", "multiprocessors", "with_bias"),
    [
        (128, 128, 512, 2, False),
        (256, 256, 512, 2, True),
        (384, 300, 512, 2, False),
        (256, 129, 512, 8, True),
        (512, 512, 256, 8, False),
        (1280, 700, 256, 4, True),
        (1280, 1280, 512, 8, False),
    ],
)
def test_the_residual_product_adds_to_the_stream_and_feeds_the_next_norm(
    tokens: int, count: int, out: int, multiprocessors: int, with_bias: bool
) -> None:
    """For pairs of multiprocessors that share tokens, and where there are two tiles of these, weights; in whole pairs
    of tiles, in halves, and in whole pairs of which the last are halved."""
    x, weights, norms = draw(0, tokens, SIZE), draw(1, LAYERS, out, SIZE) * 0.1, draw(3, LAYERS, out)
    residual = draw(2, tokens, out).astype(jnp.float32)
    bias = draw(4, LAYERS, out) if with_bias else None
    given, ends = GemmInput(x, jnp.int32(count)), ResidualEpilogue(residual, bias, norms, on=1)
    stream, ready, squares = residual_product(given, weights, jnp.int32(1), ends, multiprocessors, INTERPRET)
    wide = [np.asarray(a, np.float32) for a in (residual, x, weights[1], norms[2])]
    wanted = (wide[0] + wide[1] @ wide[2].T + (0 if bias is None else np.asarray(bias[1], np.float32)))[:count]
    np.testing.assert_allclose(stream[:count], wanted, atol=1e-4)
    assert ready is not None
    assert close(ready[:count], wanted * wide[3])
    np.testing.assert_allclose(squares[:, :count].sum(axis=0), (wanted**2).sum(axis=1), rtol=1e-5)
    if not ON_GPU:
        assert computed_rows(stream) == computed_rows(ready) == computed_rows(squares.T) < count + TOGETHER * TOKENS


@pytest.mark.parametrize(
    ("tokens", "terms", "halved"), [(256, 128, True), (256, 192, False), (1024, 384, True), (1280, 128, False)]
)
def test_a_few_tokens_terms_are_shared_by_two_multiprocessors(tokens: int, terms: int, halved: bool) -> None:
    """In several rounds, where the terms are an even number of steps; the sums are the same, and so they are again."""
    x, weights = draw(0, tokens, terms), draw(1, 1, 512, terms) * 0.1
    assert halves_terms(tokens, weights) == halved
    residual = draw(2, tokens, 512).astype(jnp.float32)
    given, ends = GemmInput(x, jnp.int32(200)), ResidualEpilogue(residual, None, None)
    stream, _, squares = residual_product(given, weights, jnp.int32(0), ends, 2, INTERPRET)
    wide = [np.asarray(a[:200], np.float32) for a in (residual, x)]
    wanted = wide[0] + wide[1] @ np.asarray(weights[0], np.float32).T
    np.testing.assert_allclose(stream[:200], wanted, atol=1e-4)
    np.testing.assert_allclose(squares[:, :200].sum(axis=0), (wanted**2).sum(axis=1), rtol=1e-5)
    again, _, _ = residual_product(given, weights, jnp.int32(0), ends, 2, INTERPRET)
    assert np.array_equal(stream[:200], again[:200])


@pytest.mark.parametrize(("out", "columns"), [(1024, 32), (1536, 64), (2048, 64), (2560, 64)])
def test_half_of_the_tokens_that_a_small_step_can_have_make_one_round(out: int, columns: int) -> None:
    """On 132 multiprocessors, in the narrowest tiles of which that is so, where any are."""
    assert columns_for(1024, out, 132) == columns


def test_after_the_last_layer_no_norm_beyond_the_last_is_read() -> None:
    x, weights, norms = draw(0, 128, SIZE), draw(1, LAYERS, 512, SIZE) * 0.1, draw(3, LAYERS, 512)
    residual = draw(2, 128, 512).astype(jnp.float32)
    ends = ResidualEpilogue(residual, None, norms, on=1)
    stream, ready, _ = residual_product(full(x), weights, jnp.int32(LAYERS - 1), ends, 2, INTERPRET)
    assert close(ready, stream * norms[-1].astype(jnp.float32))


def test_sums_are_divided_by_the_size_of_the_row() -> None:
    """As if x had been normed first."""
    x, weights, norm = draw(0, 256, SIZE).astype(jnp.float32), draw(1, LAYERS, 2, 256, SIZE) * 0.1, draw(2, SIZE)
    squares = jnp.stack([(part * part).sum(axis=1) for part in jnp.split(x, 2, axis=1)])
    given = full((x * norm.astype(jnp.float32)).astype(jnp.bfloat16), squares=squares, eps=1e-6)
    got = gate_up_product(given, weights, jnp.int32(1), 2, INTERPRET)
    normed = rms_norm(x, norm, 1e-6)
    assert close(got, gate_up(layers_of(gate_up=weights[1]), normed))
    assert not close(got, gate_up(layers_of(gate_up=weights[1]), (x * 3).astype(jnp.bfloat16)))


def test_eight_bits_are_multiplied_with_the_scales_of_their_rows() -> None:
    x, weights = draw(0, 256, SIZE).astype(EIGHT_BIT), (draw(1, LAYERS, 2, 256, SIZE) * 8).astype(EIGHT_BIT)
    scales = jnp.abs(draw(2, LAYERS, 512).astype(jnp.float32)) / 64
    got = gate_up_product(full(x, scales=scales, factor=0.5), weights, jnp.int32(1), 2, INTERPRET)
    assert got.dtype == EIGHT_BIT
    sums = np.asarray(x, np.float32) @ np.asarray(weights[1], np.float32).reshape(512, SIZE).T
    gate, up = np.split(sums * np.asarray(scales[1]) * 0.5, 2, axis=1)
    wanted = gate * up / (1 + np.exp(-gate))
    np.testing.assert_allclose(np.asarray(got, np.float32), wanted, rtol=0.07, atol=0.002)


def small_config() -> Any:
    return replace(
        KNOWN["qwen3-0.6b"], num_layers=2, hidden_size=256, num_heads=2, num_kv_heads=1, mlp_size=256, vocab_size=8
    )


def random_weights(config: Any) -> Weights:
    def one(leaf: Any) -> jax.Array:
        return jnp.ones(leaf.shape, jnp.bfloat16) if leaf.init == 1 else draw(leaf.shape[-1], *leaf.shape) * leaf.init

    return jax.tree.map(one, abstract(config), is_leaf=is_leaf)


@pytest.mark.parametrize(("quantized", "count"), [(False, 1), (False, 256), (True, 130)])
def test_a_whole_layer_equals_xla_s_at_every_count(quantized: bool, count: int) -> None:
    """The stream of one layer becomes the next one's; rows of garbage stay their own."""
    config = small_config()
    weights = random_weights(config)
    exact = weights.layers
    layers = in_eight_bits(weights).layers if quantized else exact
    angles, n = rotary_angles(config, jnp.arange(256)), jnp.int32(count)
    x = draw(9, 256, config.hidden_size).astype(jnp.float32)

    def run(ops: Any, layers: Layers) -> tuple[np.ndarray, ...]:
        stream = ops.begin(config, layers, x, n)
        for at in range(2):
            q, k, v = ops.qkv(config, layers, at, stream, angles, n)
            attended = jnp.clip(q, -3, 3)
            if quantized:
                attended = attended.astype(EIGHT_BIT)
            stream = ops.attn_out(config, layers, at, stream, attended, n)
            stream = ops.down(config, layers, at, stream, ops.gate_up(config, layers, at, stream, n), n)
        return tuple(np.asarray(a[:count], np.float32) for a in (ops.end(stream), q, k, v))

    for got, wanted in zip(run(HopperLayerOps(4, INTERPRET), layers), run(XlaLayerOps(), layers), strict=True):
        assert np.linalg.norm(got.reshape(wanted.shape) - wanted) <= (0.08 if quantized else 0.02) * np.linalg.norm(
            wanted
        )


@pytest.mark.skipif(ON_GPU, reason="there they are compiled")
@pytest.mark.parametrize("dtype", [jnp.bfloat16, EIGHT_BIT], ids=["16 bits", "8 bits"])
@pytest.mark.parametrize("tokens", [384, 512, 16384])
def test_a_layer_lowers_for_a_gpu_that_is_not_here(dtype: Any, tokens: int) -> None:
    """All four products, as the decoder calls them, for few tokens and for many."""
    config = replace(KNOWN["qwen3-0.6b"], num_layers=2)
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), abstract(config), is_leaf=is_leaf
    )
    layers = (shapes if dtype == jnp.bfloat16 else jax.eval_shape(in_eight_bits, shapes)).layers

    def layer(layers: Layers, x: jax.Array, angles: tuple[jax.Array, jax.Array], count: jax.Array) -> jax.Array:
        ops = HopperLayerOps(132)
        stream = ops.begin(config, layers, x, count)
        q, _, _ = ops.qkv(config, layers, 0, stream, angles, count)
        stream = ops.attn_out(config, layers, 0, stream, q, count)
        return ops.end(ops.down(config, layers, 0, stream, ops.gate_up(config, layers, 0, stream, count), count))

    x, turn = (jax.ShapeDtypeStruct((tokens, size), jnp.float32) for size in (1024, 64))
    count = jax.ShapeDtypeStruct((), jnp.int32)
    text = jax.jit(layer).trace(layers, x, (turn, turn), count).lower(lowering_platforms=("cuda",)).as_text()
    assert [text.count(f"{name}_product") > 0 for name in ("qkv", "gate_up", "residual")] == [True] * 3


def test_shapes_that_are_not_whole_tiles_are_left_to_xla() -> None:
    weights, heads = draw(1, LAYERS, 2, 256, SIZE), draw(1, LAYERS, 2, 4, 128, SIZE)
    out = draw(1, LAYERS, 512, SIZE)
    assert (takes_gate_up(512, weights), takes_qkv(512, heads), takes_residual(512, out)) == (True, True, True)
    assert (takes_gate_up(500, weights), takes_qkv(500, heads), takes_residual(500, out)) == (False, False, False)
    assert takes_gate_up(384, weights), "two multiprocessors share tokens"
    assert not takes_gate_up(384, draw(1, LAYERS, 2, 384, SIZE)), "and must have the same number of tiles"
    assert not takes_gate_up(512, draw(1, LAYERS, 2, 200, SIZE)), "columns"
    assert not takes_qkv(512, draw(1, LAYERS, 2, 4, 64, SIZE)), "heads of 64"
    config = replace(KNOWN["qwen3-0.6b"], hidden_size=SIZE)
    layers = layers_of(gate_up=weights, mlp_norm=draw(2, LAYERS, SIZE), attention_norm=draw(3, LAYERS, SIZE))
    x, ops, count = draw(0, 48, SIZE).astype(jnp.float32), HopperLayerOps(132), jnp.int32(48)
    stream = ops.begin(config, layers, x, count)
    assert np.array_equal(ops.end(stream), x)
    wanted = XlaLayerOps().gate_up(config, layers, 1, x, count)
    assert np.array_equal(ops.gate_up(config, layers, 1, stream, count), wanted)


@pytest.mark.parametrize(("down", "pairs"), [(1, 4), (4, 3), (5, 4), (11, 24), (48, 4)])
def test_every_tile_of_tokens_meets_every_tile_of_weights_once(down: int, pairs: int) -> None:
    """Also where the last group is smaller than the others."""
    places = [tuple(map(int, place_of(number, down, pairs))) for number in range(down * pairs)]
    assert sorted(places) == [(pair, across) for pair in range(down) for across in range(pairs)]


@pytest.mark.parametrize(
    ("units", "parts", "wanted"),
    [
        (160, 2, (132, 56)),
        (192, 2, (192, 0)),
        (132, 2, (132, 0)),
        (33, 2, (0, 66)),
        (72, 4, (66, 24)),
        (99, 4, (66, 132)),
    ],
)
def test_a_last_round_of_few_is_one_of_parts(units: int, parts: int, wanted: tuple[int, int]) -> None:
    """At most half as long, where at most half of the programs would have had work."""
    assert tuple(map(int, rounds(units, 66, parts))) == wanted
