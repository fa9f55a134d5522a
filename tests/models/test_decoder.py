"""The decoder computes the same in blocks of tokens as in one, and stops at the last real token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.steps import Sequence, layout
from onepass.attention.base import KvPool, StepShape
from onepass.attention.reference import Reference
from onepass.models import decoder
from onepass.models.config import ModelConfig
from onepass.models.decoder import Network
from onepass.models.layer_ops import Count, Layer, Qkv, Stream, XlaLayerOps
from onepass.models.layers import Angles
from onepass.models.random import random_weights
from onepass.models.rope import Rope
from onepass.models.weights import Layers

CONFIG = ModelConfig("llama", 97, 32, 3, 4, 2, 8, 48, 256, 1e-5, Rope(1e4), True)
PAGE, PAGES = 16, 12
SEQUENCES = [Sequence(0, 20, ((5, (2,)),)), Sequence(12, 7, ((4, ()), (3, ())))]


class InOne(XlaLayerOps):
    """Products that are not in blocks on a CPU: what other devices do."""

    in_blocks = False


class AllProjected(InOne):
    """q of every token in the last layer, too, as kernels do where tokens are few."""

    def projects_all(self, layers: Layers, tokens: int) -> bool:
        return True

    def qkv(self, config: ModelConfig, layers: Layers, at: Layer, stream: Stream, angles: Angles, count: Count) -> Qkv:
        ASKED.append(at)
        return super().qkv(config, layers, at, stream, angles, count)


ASKED: list[Layer] = []


def states(ops: XlaLayerOps, tokens: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Hidden states at real read-outs, the pool's keys, and how many loops the program has."""
    step = layout(SEQUENCES, tokens, 8, PAGE, PAGES, np.random.default_rng(1))
    shape = StepShape(tokens, len(step.readouts), 16, 8, PAGE)
    keys = jax.random.normal(jax.random.key(2), (3, PAGES, PAGE, 2, 8))
    weights = random_weights(CONFIG, jnp.float32)
    network = Network(CONFIG, Reference(page=PAGE), ops)
    given = (weights, step, KvPool(keys, keys))
    # A function of its own, so that JAX keeps no trace of another size of block.
    lowered = jax.jit(lambda *arrays: decoder.hidden_states(network, shape, *arrays)).lower(*given)
    hidden, pool = lowered.compile()(*given)
    return np.asarray(hidden)[: int(step.num_readouts)], np.asarray(pool.k), lowered.as_text().count("while")


@pytest.mark.parametrize("block", [16, 30])
def test_blocks_of_tokens_change_nothing(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    whole, kept, loops = states(InOne(), 64)
    monkeypatch.setattr(decoder, "CPU_BLOCK", block)
    found, kept_too, more_loops = states(XlaLayerOps(), 64)
    np.testing.assert_allclose(found, whole, atol=1e-5)
    np.testing.assert_allclose(kept_too, kept, atol=1e-5)
    assert more_loops > loops, "blocks are a loop of their own"


def test_queries_of_all_tokens_in_the_last_layer_change_nothing() -> None:
    """The layers of the loop ask once, and the last one."""
    ASKED.clear()
    found, kept, _ = states(AllProjected(), 64)
    assert len(ASKED) == 2
    whole, kept_too, _ = states(InOne(), 64)
    np.testing.assert_allclose(found, whole, atol=1e-5)
    np.testing.assert_allclose(kept, kept_too, atol=1e-5)


def test_only_the_slots_of_context_tokens_are_written() -> None:
    step = layout(SEQUENCES, 64, 8, PAGE, PAGES, np.random.default_rng(1))
    _, kept, _ = states(XlaLayerOps(), 64)
    before = np.asarray(jax.random.normal(jax.random.key(2), (3, PAGES, PAGE, 2, 8)))
    written = (kept != before).any(axis=(0, 3, 4)).reshape(-1)
    slots = np.asarray(step.slots)
    assert sorted(np.flatnonzero(written)) == sorted(slots[slots >= 0])


def test_by_blocks_leaves_what_is_past_the_last_real_token() -> None:
    given = jnp.arange(12.0)
    out = decoder.by_blocks(lambda x: x + 1, given, jnp.full(12, -1.0), jnp.int32(5), 4)
    np.testing.assert_array_equal(out, [*range(1, 9), -1, -1, -1, -1])
    out = decoder.by_blocks(lambda x: x + 1, given, None, jnp.int32(5), 4)
    np.testing.assert_array_equal(out, [*range(1, 9), 0, 0, 0, 0])
