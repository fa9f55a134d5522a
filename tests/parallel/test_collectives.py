"""What the vocabulary's logits come to: the largest logit is found in any block, and the lowest token among equals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onepass.parallel.collectives import reduce_vocabulary, reduce_vocabulary_columns
from onepass.parallel.split import WHOLE


@pytest.mark.parametrize("vocab", [499, 512, 49152, 151936, 1])
def test_the_largest_logit_and_its_token_are_found(vocab: int) -> None:
    logits = np.random.default_rng(vocab).normal(size=(9, vocab)).astype(np.float32)
    logits[0, 0] = logits[1, -1] = logits[2, vocab // 2] = 50.0
    total, best, token = jax.jit(lambda x: reduce_vocabulary(WHOLE, x))(logits)
    assert token.tolist() == logits.argmax(axis=1).tolist()
    assert best.tolist() == logits.max(axis=1).tolist()
    assert total.tolist() == jax.jit(lambda x: jax.nn.logsumexp(x, axis=-1))(logits).tolist(), "to the last bit"


@pytest.mark.parametrize("vocab", [499, 512, 49152, 151936, 1])
def test_columns_give_what_rows_give(vocab: int) -> None:
    logits = np.random.default_rng(vocab).normal(size=(9, vocab)).astype(np.float32)
    logits[0, 0] = logits[1, -1] = logits[2, vocab // 2] = 50.0
    total, best, token = jax.jit(reduce_vocabulary_columns)(logits.T)
    assert token.tolist() == logits.argmax(axis=1).tolist()
    assert best.tolist() == logits.max(axis=1).tolist()
    exact = np.log(np.exp(logits.astype(np.float64)).sum(axis=1))
    assert np.abs(total - exact).max() <= 4e-6, "about four steps of float32 at the largest of these sums"


def test_of_equal_logits_the_lowest_token_counts() -> None:
    logits = jnp.zeros((2, 1024)).at[1, jnp.array([600, 700, 1023])].set(3.0)
    assert reduce_vocabulary(WHOLE, logits)[2].tolist() == [0, 600]
    assert reduce_vocabulary_columns(logits.T)[2].tolist() == [0, 600]
