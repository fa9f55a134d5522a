"""Query and key heads finished in one pass equal those finished in parts, in Pallas's interpreter or on the GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onepass.models.heads_gpu import finished_heads
from onepass.models.known import KNOWN
from onepass.models.layers import finish_k, finish_q
from onepass.models.weights import Layers

ON_GPU = jax.default_backend() == "gpu"


@pytest.mark.parametrize(("normed", "head_dim", "tokens"), [(True, 128, 48), (True, 64, 64), (False, 64, 32)])
def test_heads_finished_in_one_pass_equal_those_finished_in_parts(normed: bool, head_dim: int, tokens: int) -> None:
    config = KNOWN["qwen3-0.6b"]
    keys = jax.random.split(jax.random.key(0), 3)
    fused = jax.random.normal(keys[0], (tokens, 2, 4, head_dim), jnp.bfloat16)
    norms = [jax.random.normal(key, (head_dim,), jnp.bfloat16) if normed else None for key in keys[1:]]
    layer = Layers(**{**dict.fromkeys(Layers.__dataclass_fields__), "q_norm": norms[0], "k_norm": norms[1]})
    turned = jnp.arange(tokens, dtype=jnp.float32)[:, None] * jnp.linspace(0.01, 1, head_dim // 2)
    angles = jnp.cos(turned), jnp.sin(turned)
    got = finished_heads(fused, angles, *norms, config.rms_eps, interpret=not ON_GPU)
    wanted = finish_q(config, layer, fused[:, :, :2], angles), finish_k(config, layer, fused[:, :, 2], angles)
    for one, other in zip(got, (*wanted, fused[:, :, 3]), strict=True):
        one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
        np.testing.assert_allclose(one, other, atol=2e-2, rtol=2e-2)
    moved = finished_heads(fused, tuple(a[::-1] for a in angles), *norms, config.rms_eps, interpret=not ON_GPU)
    assert np.abs(np.asarray(moved[0], np.float32) - np.asarray(wanted[0], np.float32)).max() > 0.1
