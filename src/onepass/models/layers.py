"""The pieces of a decoder layer as pure functions: norm, rotary positions, projections, the gated MLP.

Putting them in order is `decoder`; attention itself is given to it as an `Attention`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from onepass.attention.base import precision
from onepass.attention.fast_math import LOG2_E, power_of_two, rounded
from onepass.models.config import ModelConfig
from onepass.models.rope import inverse_frequencies
from onepass.models.weights import Layers
from onepass.parallel.collectives import total
from onepass.parallel.split import WHOLE, Split

Hidden = Float[Array, "tokens hidden"]


def rms_norm(x: Float[Array, "... size"], weight: Float[Array, " size"], eps: float) -> Float[Array, "... size"]:
    with jax.named_scope("norm"):
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
        return wide.astype(weight.dtype) * weight


Angles = tuple[Float[Array, "tokens half"], Float[Array, "tokens half"]]


def rotary_angles(config: ModelConfig, positions: Int[Array, " tokens"]) -> Angles:
    """Cosines and sines, times yarn's attention factor."""
    with jax.named_scope("rotary"):
        angles = positions[..., None].astype(jnp.float32) * inverse_frequencies(config.rope, config.head_dim)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        factor = config.rope.attention_factor
        return (cos, sin) if factor == 1.0 else (cos * factor, sin * factor)


def rotate(x: Float[Array, "tokens *heads head_dim"], angles: Angles) -> Float[Array, "tokens *heads head_dim"]:
    """Half-split rotary positions, in float32."""
    with jax.named_scope("rotary"):
        cos, sin = (a.reshape(a.shape[0], *[1] * (x.ndim - 2), a.shape[-1]) for a in angles)
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def project_qkv(config: ModelConfig, layer: Layers, x: Hidden, angles: Angles) -> tuple[Array, Array, Array]:
    """q [tokens kv_heads group head_dim]; k and v [tokens kv_heads head_dim]; q and k rotated."""
    return finished(config, layer, _product(x, layer.qkv, layer.qkv_bias), angles)


def finished(config: ModelConfig, layer: Layers, fused: Array, angles: Angles) -> tuple[Array, Array, Array]:
    """q, k and v of their product, norms and rotation done."""

    def in_parts(fused: Array) -> tuple[Array, Array, Array]:
        q, k, v = fused[:, :, : config.group], fused[:, :, config.group], fused[:, :, config.group + 1]
        return finish_q(config, layer, q, angles), finish_k(config, layer, k, angles), v

    def in_one_pass(fused: Array) -> tuple[Array, Array, Array]:
        from onepass.models.heads_gpu import finished_heads  # Pallas takes 0.1 s to import

        return finished_heads(fused, angles, layer.q_norm, layer.k_norm, config.rms_eps)

    if fused.dtype.itemsize != 2:  # for exactness, not for speed
        return in_parts(fused)
    return jax.lax.platform_dependent(fused, cuda=in_one_pass, default=in_parts)


def project_q(config: ModelConfig, layer: Layers, x: Hidden, angles: Angles) -> Array:
    bias = None if layer.qkv_bias is None else layer.qkv_bias[:, : config.group]
    q = _product(x, layer.qkv[:, : config.group], bias)
    return finish_q(config, layer, q, angles)


def project_kv(config: ModelConfig, layer: Layers, x: Hidden, angles: Angles) -> tuple[Array, Array]:
    bias = None if layer.qkv_bias is None else layer.qkv_bias[:, config.group :]
    fused = _product(x, layer.qkv[:, config.group :], bias)
    return finish_k(config, layer, fused[:, :, 0], angles), fused[:, :, 1]


def finish_q(config: ModelConfig, layer: Layers, q: Array, angles: Angles) -> Array:
    if layer.q_norm is not None:
        q = rms_norm(q, layer.q_norm, config.rms_eps)
    return rotate(q, angles)


def finish_k(config: ModelConfig, layer: Layers, k: Array, angles: Angles) -> Array:
    if layer.k_norm is not None:
        k = rms_norm(k, layer.k_norm, config.rms_eps)
    return rotate(k, angles)


def project_out(layer: Layers, x: Float[Array, "tokens kv_heads group head_dim"], split: Split = WHOLE) -> Hidden:
    size = layer.out.shape[0]
    return _summed(x.reshape(x.shape[0], -1), layer.out.reshape(size, -1), layer.out_bias, split)


def gate_up(layer: Layers, x: Hidden) -> Float[Array, "tokens mlp"]:
    fused = _product(x, layer.gate_up, layer.gate_up_bias)
    return gated(fused[:, 0], fused[:, 1])


def project_down(layer: Layers, x: Float[Array, "tokens mlp"], split: Split = WHOLE) -> Hidden:
    return _summed(x, layer.down, layer.down_bias, split)


def gated(gate: Array, up: Array) -> Array:
    """silu(gate) · up, in float32 until the end."""
    wide, up = gate.astype(jnp.float32), up.astype(jnp.float32)
    return rounded(wide * up / (1 + power_of_two(wide * -LOG2_E)), gate.dtype)


def _summed(x: Array, weight: Array, bias: Array | None, split: Split) -> Hidden:
    """A product whose terms are spread over devices: each adds up its own, then all of them, and the bias once."""
    out = total(split, _product(x.astype(weight.dtype), weight, None))
    return out if bias is None else out + bias


def _product(x: Float[Array, "tokens size"], weight: Array, bias: Array | None) -> Array:
    """x · weightᵀ, whose first axes [*out, size] become the result's last. As one matrix: with several axes XLA on the
    CPU would transpose the weight in every step."""
    matrix = weight.reshape(-1, weight.shape[-1])
    out = jnp.einsum("td,nd->tn", x, matrix, precision=precision(x.dtype))
    out = out.reshape(x.shape[0], *weight.shape[:-1])
    return out if bias is None else out + bias
