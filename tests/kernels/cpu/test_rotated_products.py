"""Products of rotated activations and weights in 8 bits (`csrc/products/rotated_products.h`) equal their definition, on
any CPU: with AVX-512's VNNI by assembly, elsewhere by the compiler's vectors."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from kernels.cpu.test_line_ops import AT, DTYPES, LAYERS, WIDE, computed, config_of, draw, given, layers_of
from onepass.kernels.cpu import build
from onepass.kernels.cpu.int8_dot import int8_dot
from onepass.kernels.cpu.line_ops import CpuLayerOps
from onepass.models.int8 import Int8Scales, layers_in_int8
from onepass.models.layer_ops import XlaLayerOps
from onepass.models.rotation import rotated
from onepass.models.weights import Layers

pytestmark = pytest.mark.skipif(build.cpu_problem() is not None, reason=str(build.cpu_problem()))
OPS = CpuLayerOps(integer_products=True)
LEVELS = 127  # of activations
SCALES: Int8Scales = int8_dot().scales if int8_dot().scales == "paired" else "medium"
MOST = 64 if SCALES == "paired" else 127  # of any weights
ODD = (64, 416, 16)  # blocks of 64 and 32: of gate and up, and of down, whose activation stays in float32


@pytest.fixture(autouse=True, scope="module")
def _library() -> None:
    build.load_cpu("int8")
    build.load_cpu("int8_dot")


def medium(sizes: tuple[int, int, int], dtype: Any, extras: bool = True) -> Layers:
    return layers_in_int8(layers_of(sizes, dtype, extras), SCALES)


@DTYPES
@pytest.mark.parametrize("sizes", [WIDE, ODD, (96, 192, 32)], ids=["wide", "odd", "small"])
@pytest.mark.parametrize("tokens", [1, 17, 48, 150])
def test_rotated_products_are_near_those_of_wide_activations(
    sizes: tuple[int, int, int], tokens: int, dtype: Any
) -> None:
    """XLA's are of the same weights. An outlier in the stream, as models have them, costs the others little."""
    layers, (x, attended) = medium(sizes, dtype), given(sizes, tokens, dtype)
    x = x.at[:, 5].multiply(20)
    assert OPS.left_to_xla(config_of(sizes), layers) == {}
    result, expected = (computed(ops, layers, x, attended, tokens) for ops in (OPS, XlaLayerOps()))
    for name, wanted in expected.items():
        assert np.abs(result[name] - wanted).mean() <= 0.02 * np.abs(wanted).mean(), name
        assert not np.array_equal(result[name], wanted), f"{name}: it is quantized activations that are multiplied"


def test_weights_that_were_not_rotated_are_noticed() -> None:
    """The control of the test above."""
    layers, (x, attended) = medium(WIDE, jnp.float32), given(WIDE, 48, jnp.float32)
    plain = jnp.asarray(rotated(np.asarray(layers.out, np.float32).reshape(LAYERS, WIDE[0], -1), 16) / 16)
    other = replace(layers, out=jnp.round(plain).astype(jnp.int8).reshape(layers.out.shape))
    result, expected = (computed(ops, one, x, attended, 48) for ops, one in ((OPS, other), (XlaLayerOps(), layers)))
    added = [a["attn_out"] - np.asarray(x) for a in (result, expected)]
    assert np.abs(added[0] - added[1]).mean() > 0.5 * np.abs(added[1]).mean()


@pytest.mark.parametrize("tokens", [1, 40, 150])
def test_rotated_integer_products_are_exact(tokens: int) -> None:
    """Scales of 1 leave the sums of integers as they are: those of 192 terms are exact in float32."""
    rng, layers = np.random.default_rng(3), medium(WIDE, jnp.float32, extras=False)
    weight = rng.integers(-MOST, MOST + 1, layers.out.shape)
    layers = replace(layers, out=jnp.asarray(weight, jnp.int8), out_scale=jnp.ones((LAYERS, WIDE[0], 2)))
    numbers = rng.integers(-LEVELS, LEVELS + 1, (tokens, 192))
    numbers[:, ::96] = LEVELS  # so that every block's numbers are their own quantised ones
    attended = jnp.asarray(rotated(numbers.astype(np.float32), 16) / 16).reshape(tokens, 2, 3, WIDE[2])
    result = computed(OPS, layers, jnp.zeros((tokens, WIDE[0])), attended, tokens)
    np.testing.assert_array_equal(result["attn_out"], numbers @ weight[AT].reshape(WIDE[0], 192).T)


@pytest.mark.parametrize("weight", [-MOST if SCALES == "paired" else -128, MOST])
def test_extreme_numbers_do_not_leave_a_sums_range(weight: int) -> None:
    """A block of 96 terms, the longest that is taken, every product as large as can be."""
    sizes = (256, 96, 64)
    layers = layers_in_int8(layers_of(sizes, jnp.float32, extras=False), SCALES)
    out = jnp.full_like(layers.out, weight).reshape(LAYERS, 256, 384)[..., :96].reshape(LAYERS, 256, 2, 3, 16)
    layers = replace(layers, out=out, out_scale=jnp.ones((LAYERS, 256, 1)))
    numbers = np.full((70, 96), LEVELS) * np.where(np.arange(70) % 2, 1, -1)[:, None]
    attended = jnp.asarray(rotated(numbers.astype(np.float32), 16) / 16).reshape(70, 2, 3, 16)
    stream = OPS.begin(config_of(sizes), layers, jnp.zeros((70, 256)), jnp.int32(70))
    added = OPS.end(OPS.attn_out(config_of(sizes), layers, AT, stream, attended, jnp.int32(70)))
    np.testing.assert_array_equal(added, np.repeat(96.0 * weight * numbers[:, :1], 256, axis=1))


@pytest.mark.parametrize("sizes", [WIDE, ODD, (96, 192, 32)], ids=["wide", "odd", "small"])
def test_a_rotated_token_does_not_depend_on_others(sizes: tuple[int, int, int]) -> None:
    layers, (x, attended) = (
        medium(sizes, jnp.float32),
        given(sizes, 150, jnp.float32),
    )  # whole groups of lines and a rest
    together = computed(OPS, layers, x, attended, 150)
    for token in (0, 17, 99, 149):
        alone = computed(OPS, layers, x[token:][:1], attended[token:][:1], 1)
        for name in ("v", "attn_out", "mlp"):
            np.testing.assert_array_equal(alone[name][0], together[name][token], err_msg=name)


@DTYPES
@pytest.mark.parametrize("count", [0, 1, 33, 64, 100])
def test_rotated_products_stop_at_the_last_real_token(count: int, dtype: Any) -> None:
    layers, (x, attended) = medium(WIDE, dtype), given(WIDE, 100, dtype)
    whole = computed(OPS, layers, x, attended, 100)
    part = computed(OPS, layers, x.at[count:].set(jnp.nan), attended.at[count:].set(jnp.nan), count)
    for name, wanted in whole.items():
        np.testing.assert_array_equal(part[name][:count], wanted[:count], err_msg=name)
    assert not any(part[name][count:].any() for name in "qkv")
    after = computed(OPS, layers, x, attended, count)["mlp"][(count + 15) // 16 * 16 :]
    np.testing.assert_array_equal(after, x[(count + 15) // 16 * 16 :])


@pytest.mark.parametrize("beyond", [jnp.nan, jnp.inf, -jnp.inf])
def test_a_number_that_is_not_finite_stays_visible(beyond: float) -> None:
    layers, (x, attended) = medium(WIDE, jnp.float32), given(WIDE, 40, jnp.float32)
    result = computed(OPS, layers, x.at[3, 7].set(beyond), attended.at[5, 0, 1, 2].set(beyond), 40)
    wrong = {"q": {3}, "k": {3}, "v": {3}, "attn_out": {3, 5}, "mlp": {3, 5}}
    for name, numbers in result.items():
        finite = np.isfinite(numbers.reshape(40, -1)).all(axis=1)
        assert set(np.flatnonzero(~finite)) == wrong[name], name


def test_a_gated_product_is_in_float32_where_its_end_does_not_quantise() -> None:
    """It does where `down`'s scales are of more than 32 terms; ODD's are not."""
    layers, x, count = medium(ODD, jnp.float32), draw(1, 40, ODD[0]), jnp.int32(40)
    activation = np.asarray(OPS.gate_up(config_of(ODD), layers, AT, OPS.begin(config_of(ODD), layers, x, count), count))
    wanted = np.asarray(XlaLayerOps().gate_up(config_of(ODD), layers, AT, x, count))
    lines = activation.transpose(0, 2, 1).reshape(-1, ODD[1])[:40]
    assert np.abs(lines - wanted).mean() <= 0.04 * np.abs(wanted).mean()
