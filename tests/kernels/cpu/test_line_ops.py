"""The general C++ products equal XLA's: for any number of tokens and any sizes, with and without bias. They stop at the
line of the last real token, and no token changes another's numbers."""

import ctypes
import functools
from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onepass.kernels.cpu import build
from onepass.kernels.cpu.int8_dot import bf16_products, int8_dot
from onepass.kernels.cpu.libraries import INT8_DOTS, PRODUCTS_BF16
from onepass.kernels.cpu.line_ops import CpuLayerOps, Lines
from onepass.models.config import ModelConfig
from onepass.models.int8 import layers_in_int8
from onepass.models.known import known_config
from onepass.models.layer_ops import XlaLayerOps
from onepass.models.layers import rotary_angles
from onepass.models.weights import Layers, Weights
from onepass.parallel.split import Split

pytestmark = pytest.mark.skipif(build.cpu_problem() is not None, reason=str(build.cpu_problem()))
LAYERS, AT = 3, 1
DTYPES = pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
TOLERANCE = {jnp.float32: 1e-5, jnp.bfloat16: 2e-2}
SMALL = (40, 72, 10)  # hidden, mlp, head_dim: multiples of nothing
WIDE = (96, 1600, 32)  # more terms than are summed at once


@pytest.fixture(autouse=True, scope="module")
def _library() -> None:
    build.load_cpu()


def config_of(sizes: tuple[int, int, int]) -> ModelConfig:
    hidden, mlp, head_dim = sizes
    return replace(
        known_config("smollm2-135m"), hidden_size=hidden, mlp_size=mlp, num_heads=6, num_kv_heads=2, head_dim=head_dim
    )


def draw(seed: int, *axes: int, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(axes), dtype)


def layers_of(sizes: tuple[int, int, int], dtype: Any, extras: bool) -> Layers:
    """`extras`: every bias, and norms of q and k."""
    hidden, mlp, head_dim = sizes
    shapes = {
        "attention_norm": (hidden,),
        "qkv": (2, 5, head_dim, hidden),
        "out": (hidden, 2, 3, head_dim),
        "mlp_norm": (hidden,),
        "gate_up": (2, mlp, hidden),
        "down": (hidden, mlp),
    }
    if extras:
        shapes |= {
            "qkv_bias": (2, 5, head_dim),
            "out_bias": (hidden,),
            "gate_up_bias": (2, mlp),
            "down_bias": (hidden,),
        }
        shapes |= {"q_norm": (head_dim,), "k_norm": (head_dim,)}
    given = {
        name: draw(seed, LAYERS, *shape, dtype=dtype) / (shape[-1] ** 0.5 if len(shape) > 1 else 1)
        for seed, (name, shape) in enumerate(shapes.items())
    }
    return Layers(**{field.name: given.get(field.name) for field in fields(Layers)})


@functools.partial(jax.jit, static_argnums=0)
def run(ops: XlaLayerOps, layers: Layers, x: jax.Array, attended: jax.Array, count: jax.Array) -> dict[str, jax.Array]:
    hidden, mlp, head_dim = layers.qkv.shape[-1], layers.gate_up.shape[2], layers.qkv.shape[3]
    config = config_of((hidden, mlp, head_dim))
    stream = ops.begin(config, layers, x, count)
    angles = rotary_angles(config, 7 * jnp.arange(x.shape[0]))
    q, k, v = ops.qkv(config, layers, AT, stream, angles, count)
    added = ops.attn_out(config, layers, AT, stream, attended, count)
    down = ops.down(config, layers, AT, added, ops.gate_up(config, layers, AT, added, count), count)
    return {"q": q, "k": k, "v": v, "attn_out": ops.end(added), "mlp": ops.end(down)}


def computed(ops: XlaLayerOps, layers: Layers, x: jax.Array, attended: jax.Array, count: int) -> dict[str, np.ndarray]:
    """What each operation gives, [tokens, ...]."""
    results = run(ops, layers, x, attended, jnp.int32(count))
    return {name: np.asarray(a, np.float32) for name, a in results.items()}


def given(sizes: tuple[int, int, int], tokens: int, dtype: Any) -> tuple[jax.Array, jax.Array]:
    return draw(20, tokens, sizes[0]), draw(21, tokens, 2, 3, sizes[2], dtype=dtype)


@DTYPES
@pytest.mark.parametrize(("sizes", "extras"), [(SMALL, True), (WIDE, False)], ids=["small", "wide"])
@pytest.mark.parametrize("tokens", [1, 17, 48, 100])
def test_products_equal_xlas(sizes: tuple[int, int, int], tokens: int, extras: bool, dtype: Any) -> None:
    layers, (x, attended) = layers_of(sizes, dtype, extras), given(sizes, tokens, dtype)
    result, expected = (computed(ops, layers, x, attended, tokens) for ops in (CpuLayerOps(), XlaLayerOps()))
    for name, wanted in expected.items():
        assert result[name].shape == wanted.shape
        assert np.abs(result[name] - wanted).max() <= TOLERANCE[dtype] * np.abs(wanted).max(), name


def test_products_in_panels_of_many_rows_equal_xlas() -> None:
    """Panels grow with the blocks of lines; the last one of a matrix is smaller than the others."""
    layers, (x, attended) = layers_of(WIDE, jnp.float32, True), given(WIDE, 600, jnp.float32)
    result, expected = (computed(ops, layers, x, attended, 600) for ops in (CpuLayerOps(), XlaLayerOps()))
    for name, wanted in expected.items():
        assert np.abs(result[name] - wanted).max() <= 1e-5 * np.abs(wanted).max(), name


@DTYPES
@pytest.mark.parametrize("tokens", [1, 17, 100])
def test_products_of_int8_weights_equal_xlas(tokens: int, dtype: Any) -> None:
    build.load_cpu("int8")
    layers, (x, attended) = layers_of(WIDE, dtype, extras=True), given(WIDE, tokens, dtype)
    narrow = layers_in_int8(layers)
    result, expected = (computed(ops, narrow, x, attended, tokens) for ops in (CpuLayerOps(), XlaLayerOps()))
    plain = computed(CpuLayerOps(), layers, x, attended, tokens)
    for name, wanted in expected.items():
        assert np.abs(result[name] - wanted).max() <= TOLERANCE[dtype] * np.abs(wanted).max(), name
        assert np.abs(result[name] - plain[name]).mean() <= 0.02 * np.abs(plain[name]).mean(), name
    assert not np.array_equal(result["q"], plain["q"]), "it is the quantized weights that are multiplied"


@pytest.mark.parametrize(("sizes", "integer", "terms"), [(WIDE, False, 192), ((576, 64, 96), True, 576)])
def test_scales_of_other_kernels_are_left_to_xla(sizes: tuple[int, int, int], integer: bool, terms: int) -> None:
    """As weights have that were loaded for AMX, where its kernels could not be built."""
    build.load_cpu("int8")
    build.load_cpu("int8_dot")
    narrow = layers_in_int8(layers_of(sizes, jnp.float32, extras=True), "coarse")
    x, attended = given(sizes, 40, jnp.float32)
    ops = CpuLayerOps(integer_products=integer)
    left = ops.left_to_xla(config_of(sizes), narrow)
    assert set(left.values()) == {f"the weights have scales of {terms} terms, for other kernels"}
    result, expected = (computed(one, narrow, x, attended, 40) for one in (ops, XlaLayerOps()))
    for name, wanted in expected.items():
        assert np.abs(result[name] - wanted).mean() <= 1e-6 * np.abs(wanted).mean(), name


@DTYPES
@pytest.mark.parametrize("tokens", [1, 17, 100])
def test_products_of_int8_activations_are_near_those_of_wide_ones(tokens: int, dtype: Any) -> None:
    """Both have the same weights in int8. Activations of 7 bits, where the CPU has no better, are half as fine."""
    build.load_cpu("int8")
    build.load_cpu("int8_dot")
    allowed = 0.02 if int8_dot().activation_bits == 8 else 0.04
    narrow = layers_in_int8(layers_of(WIDE, dtype, extras=True))
    x, attended = given(WIDE, tokens, dtype)
    wide, result = (
        computed(CpuLayerOps(integer_products=integer), narrow, x, attended, tokens) for integer in (False, True)
    )
    for name, wanted in wide.items():
        assert np.abs(result[name] - wanted).mean() <= allowed * np.abs(wanted).mean(), name
    for name in "qkv":  # whose activations are finer, or stay as they are
        off = 0 if int8_dot().qkv_bits == 32 else 2e-3 if dtype == jnp.float32 else TOLERANCE[dtype]
        assert np.abs(result[name] - wide[name]).max() <= off * np.abs(wide[name]).max(), name
    assert not np.array_equal(result["mlp"], wide["mlp"]), "it is quantized activations that are multiplied"


@pytest.mark.parametrize("block", [16, 32])
def test_integer_products_are_exact(block: int) -> None:
    """Scales of 1 leave the sums of integers as they are: those of 192 terms are exact in float32."""
    build.load_cpu("int8_dot")
    tokens, rng, levels = 150, np.random.default_rng(3), 2 ** (int8_dot().activation_bits - 1) - 1
    layers = layers_of(WIDE, jnp.float32, extras=False)
    weight = rng.integers(-128, 128, layers.out.shape)
    scale = jnp.ones((LAYERS, WIDE[0], 192 // block))
    layers = replace(layers_in_int8(layers), out=jnp.asarray(weight, jnp.int8), out_scale=scale)
    activations = rng.integers(-levels, levels + 1, (tokens, 192))
    activations[:, ::32] = levels  # so that every block's numbers are their own quantised ones
    attended = jnp.asarray(activations.reshape(tokens, 2, 3, WIDE[2]), jnp.float32)
    ops = CpuLayerOps(integer_products=True)
    result = computed(ops, layers, jnp.zeros((tokens, WIDE[0])), attended, tokens)
    np.testing.assert_array_equal(result["attn_out"], activations @ weight[AT].reshape(WIDE[0], 192).T)


def test_a_token_with_int8_activations_does_not_depend_on_others() -> None:
    build.load_cpu("int8_dot")
    ops, layers = CpuLayerOps(integer_products=True), layers_in_int8(layers_of(WIDE, jnp.float32, extras=True))
    x, attended = given(WIDE, 150, jnp.float32)  # whole blocks of lines and a rest
    together = computed(ops, layers, x, attended, 150)
    for token in (0, 17, 99, 149):
        alone = computed(ops, layers, x[token:][:1], attended[token:][:1], 1)
        for name in ("v", "attn_out", "mlp"):
            np.testing.assert_array_equal(alone[name][0], together[name][token], err_msg=name)


def test_the_table_names_the_instructions_that_the_library_was_built_for() -> None:
    build.load_cpu("int8_dot")
    assert {build.int8_dot_name(library) for library in INT8_DOTS} == {int8_dot().name}
    library = build.register(PRODUCTS_BF16)
    library.onepass_bf16_products_name.restype = ctypes.c_char_p
    assert bf16_products().endswith(library.onepass_bf16_products_name().decode())


@DTYPES
@pytest.mark.parametrize("count", [0, 1, 33, 64, 100])
def test_products_stop_at_the_last_real_token(count: int, dtype: Any) -> None:
    """Real tokens get, exactly, what they get among others; NaN in padding harms nobody, and q, k and v have none."""
    layers, (x, attended) = layers_of(SMALL, dtype, extras=True), given(SMALL, 100, dtype)
    whole = computed(CpuLayerOps(), layers, x, attended, 100)
    part = computed(CpuLayerOps(), layers, x.at[count:].set(jnp.nan), attended.at[count:].set(jnp.nan), count)
    for name, wanted in whole.items():
        np.testing.assert_array_equal(part[name][:count], wanted[:count], err_msg=name)
    assert not any(part[name][count:].any() for name in "qkv")


@DTYPES
def test_padding_stays_finite(dtype: Any) -> None:
    layers, (x, attended) = layers_of(SMALL, dtype, extras=True), given(SMALL, 100, dtype)
    for name, result in computed(CpuLayerOps(), layers, x, attended, 37).items():
        assert np.isfinite(result).all(), name
    after = computed(CpuLayerOps(), layers, x, attended, 37)["mlp"][48:]  # whole lines after the last real token's
    np.testing.assert_array_equal(after, x[48:])


@DTYPES
def test_a_token_does_not_depend_on_others_or_on_its_place_among_them(dtype: Any) -> None:
    layers, (x, attended) = layers_of(WIDE, dtype, extras=True), given(WIDE, 100, dtype)
    together = computed(CpuLayerOps(), layers, x, attended, 100)
    other = computed(CpuLayerOps(), layers, x[::-1] + 1, attended[::-1], 100)
    for token in (0, 17, 99):
        mixed_x, mixed_attended = ((-a).at[token].set(a[token]) for a in (x, attended))
        mixed = computed(CpuLayerOps(), layers, mixed_x, mixed_attended, 100)
        alone = computed(CpuLayerOps(), layers, x[token:][:1], attended[token:][:1], 1)
        for name, wanted in together.items():
            np.testing.assert_array_equal(mixed[name][token], wanted[token], err_msg=name)
            assert not np.array_equal(other[name][token], wanted[token]), name
            if name not in "qk":  # which are rotated by their position
                np.testing.assert_array_equal(alone[name][0], wanted[token], err_msg=name)


def over_vocabulary(hidden: jax.Array, table: jax.Array, count: int, bias: jax.Array | None = None) -> np.ndarray:
    weights = Weights(table, None, None, None, bias)
    return np.asarray(CpuLayerOps().over_vocabulary(config_of(SMALL), weights, hidden, jnp.int32(count)))


@DTYPES
@pytest.mark.parametrize(("count", "rows"), [(1, 2), (5, 72), (64, 1000), (150, 701)])
def test_a_vocabulary_comes_to_what_its_logits_do(count: int, rows: int, dtype: Any) -> None:
    """The log-sum-exp, the largest logit and its first row; padding is no number and harms nobody."""
    hidden, table, bias = draw(1, 150, 96, dtype=dtype), draw(2, rows, 96, dtype=dtype), draw(3, rows)
    table = table.at[-1].set(table[0])  # of equal logits the lowest row counts
    result = over_vocabulary(hidden.at[count:].set(jnp.nan), table, count, bias.at[-1].set(bias[0]))
    wide = (np.asarray(a, np.float64) for a in (hidden[:count], table))
    logits = np.matmul(next(wide), next(wide).T) + np.asarray(bias.at[-1].set(bias[0]), np.float64)
    assert result.shape == (150, 3)
    assert not result[count:].any()
    tolerance = 3e-6 if dtype == jnp.float32 else 2e-2 if "rounded" in bf16_products() else 3e-6
    wanted = np.stack([np.logaddexp.reduce(logits, axis=1), logits.max(axis=1)], axis=1)
    np.testing.assert_allclose(result[:count, :2], wanted, atol=tolerance * np.abs(logits).max())
    if tolerance < 1e-3:
        np.testing.assert_array_equal(result[:count, 2], logits.argmax(axis=1))


def test_a_read_out_over_the_vocabulary_does_not_depend_on_others() -> None:
    hidden, table = draw(1, 150, 96), draw(2, 1000, 96)
    together = over_vocabulary(hidden, table, 150)
    for token in (0, 17, 99, 149):
        np.testing.assert_array_equal(over_vocabulary(hidden[token:][:1], table, 1)[0], together[token])


def test_a_read_out_that_is_no_number_shows_in_the_vocabulary() -> None:
    hidden, table = draw(1, 20, 96).at[3, 5].set(jnp.nan), draw(2, 1000, 96)
    finite = np.isfinite(over_vocabulary(hidden, table, 20)[:, 0])
    np.testing.assert_array_equal(finite, np.arange(20) != 3)


@pytest.mark.parametrize("eight_bit", [False, True])
def test_split_models_and_eight_bits_are_left_to_xla(eight_bit: bool) -> None:
    layers, (x, _) = layers_of(SMALL, jnp.float32, extras=False), given(SMALL, 8, jnp.float32)
    config = config_of(SMALL)
    assert isinstance(CpuLayerOps().begin(config, layers, x, jnp.int32(8)), Lines)
    if eight_bit:
        layers = replace(layers, qkv=layers.qkv.astype(jnp.float8_e4m3fn))
    else:
        config = replace(config, split=Split(2, config.vocab_size))
    assert CpuLayerOps().begin(config, layers, x, jnp.int32(8)) is x
